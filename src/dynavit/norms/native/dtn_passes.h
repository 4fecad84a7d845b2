/* Everything that depends on the number type. Included once for float, once for double. */

#define V NAME(V)
#define Panel NAME(Panel)
#define Axis NAME(Axis)
#define Problem NAME(Problem)
#define LANES ((int)(VECTOR_BYTES / sizeof(REAL)))
#define INLINE static inline __attribute__((always_inline))

typedef REAL V __attribute__((vector_size(VECTOR_BYTES)));

INLINE V NAME(load)(const REAL *from, int lanes) {
    V v = {0};
    if (lanes == LANES) memcpy(&v, from, sizeof v);
    else memcpy(&v, from, lanes * sizeof(REAL));
    return v;
}

INLINE void NAME(store)(REAL *to, V v, int lanes) {
    if (lanes == LANES) memcpy(to, &v, sizeof v);
    else memcpy(to, &v, lanes * sizeof(REAL));
}

INLINE V NAME(same)(REAL x) { return (V){0} + x; }

INLINE V NAME(inverse_root)(V v) {
    REAL lanes[LANES];
    memcpy(lanes, &v, sizeof v);
    for (int l = 0; l < LANES; l++) lanes[l] = 1 / (sizeof(REAL) == 4 ? sqrtf(lanes[l]) : sqrt(lanes[l]));
    memcpy(&v, lanes, sizeof v);
    return v;
}

/* v where `test` is not negative, else 0 (a NaN in `test` lets v through, so that bad input stays visible). */
INLINE V NAME(unless_negative)(V test, V v) {
    __auto_type negative = test < 0;
    return (V)((__typeof__(negative))v & ~negative);
}

INLINE REAL NAME(sum)(V v) {
    REAL lanes[LANES], total = 0;
    memcpy(lanes, &v, sizeof v);
    for (int width = LANES / 2; width; width /= 2)
        for (int l = 0; l < width; l++) lanes[l] += lanes[l + width];
    total = lanes[0];
    return total;
}

/* ---- kernels packed for the passes: ROWS rows side by side, so that one column of them is one short read ---- */

typedef struct {
    int n, blocks, *from, *to; /* block q holds rows q*ROWS.. and columns from[q] <= j < to[q] */
    long *at;
    REAL *w; /* w[at[q] + (j - from[q]) * ROWS + r] = P[q*ROWS + r][j] */
} Panel;

typedef struct {
    Band band;
    Panel forward, transposed;
} Axis;

static Panel NAME(panel_make)(const Band *band, int transpose) {
    int n = band->n, blocks = (n + ROWS - 1) / ROWS;
    Panel panel = {n, blocks, malloc(blocks * sizeof(int)), malloc(blocks * sizeof(int)), malloc(blocks * sizeof(long)), NULL};
    for (int q = 0; q < blocks; q++) panel.from[q] = n, panel.to[q] = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < band->count[i]; k += band->count[i] > 1 && !transpose ? band->count[i] - 1 : 1) {
            int j = band->first[i] + k, row = transpose ? j : i, column = transpose ? i : j, q = row / ROWS;
            if (column < panel.from[q]) panel.from[q] = column;
            if (column + 1 > panel.to[q]) panel.to[q] = column + 1;
        }
    long total = 0;
    for (int q = 0; q < blocks; q++) {
        if (panel.to[q] < panel.from[q]) panel.from[q] = panel.to[q] = 0; /* tokens nobody looks at */
        panel.at[q] = total;
        total += (long)(panel.to[q] - panel.from[q]) * ROWS;
    }
    panel.w = calloc(total ? total : 1, sizeof(REAL));
    for (int i = 0; i < n; i++)
        for (int k = 0; k < band->count[i]; k++) {
            int j = band->first[i] + k, row = transpose ? j : i, column = transpose ? i : j, q = row / ROWS;
            panel.w[panel.at[q] + (long)(column - panel.from[q]) * ROWS + row % ROWS] = band->p[(size_t)i * band->width + k];
        }
    return panel;
}

static void NAME(panel_free)(Panel *p) {
    free(p->from), free(p->to), free(p->at), free(p->w);
}

/* out[i] = sum_j P[i][j] in[j] along an axis whose neighbours lie `step` vectors apart, on LINES parallel lines `gap`
   apart, for two tensors (first and second moment) at once, so that each weight is read once for 2 * LINES products. */
INLINE void NAME(apply_lines)(const Panel *p, const V *in0, const V *in1, V *out0, V *out1, long step, long gap, const int lines) {
    for (int q = 0; q < p->blocks; q++) {
        const REAL *w = p->w + p->at[q];
        V acc0[LINES][ROWS] = {0}, acc1[LINES][ROWS] = {0};
        for (int j = p->from[q]; j < p->to[q]; j++, w += ROWS)
#pragma GCC unroll 8
            for (int l = 0; l < lines; l++) {
                V a = in0[j * step + l * gap], b = in1[j * step + l * gap];
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; r++) acc0[l][r] += w[r] * a, acc1[l][r] += w[r] * b;
            }
        int rows = p->n - q * ROWS < ROWS ? p->n - q * ROWS : ROWS;
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
            if (r < rows)
#pragma GCC unroll 8
                for (int l = 0; l < lines; l++) {
                    long i = (q * ROWS + r) * step + l * gap;
                    out0[i] = acc0[l][r], out1[i] = acc1[l][r];
                }
    }
}

static void NAME(apply)(const Panel *p, const V *in0, const V *in1, V *out0, V *out1, long step, long lines, long gap) {
    long l = 0;
    for (; l + LINES <= lines; l += LINES)
        NAME(apply_lines)(p, in0 + l * gap, in1 + l * gap, out0 + l * gap, out1 + l * gap, step, gap, LINES);
    for (; l < lines; l++) NAME(apply_lines)(p, in0 + l * gap, in1 + l * gap, out0 + l * gap, out1 + l * gap, step, gap, 1);
}

/* grad_P[i][j] += sum over lines, lanes and the two tensors of g[i] z[j], only where P[i][j] is not cut. */
static void NAME(outer)(const Axis *axis, double *grad_p, const V *g0, const V *g1, const V *z0, const V *z1, long step, long lines, long gap) {
    const Panel *p = &axis->forward;
    const Band *band = &axis->band;
    for (int q = 0; q < p->blocks; q++) {
        long row[ROWS];
        for (int r = 0; r < ROWS; r++) row[r] = (q * ROWS + r < p->n ? q * ROWS + r : p->n - 1) * step;
        for (int j = p->from[q]; j < p->to[q]; j += ROWS) {
            long column[ROWS];
            for (int k = 0; k < ROWS; k++) column[k] = (j + k < p->to[q] ? j + k : p->to[q] - 1) * step;
            V acc[ROWS][ROWS] = {0};
            for (long l = 0; l < lines * gap; l += gap)
#pragma GCC unroll 2
                for (int tensor = 0; tensor < 2; tensor++) {
                    const V *g = (tensor ? g1 : g0) + l, *z = (tensor ? z1 : z0) + l;
                    V zs[ROWS];
#pragma GCC unroll 8
                    for (int k = 0; k < ROWS; k++) zs[k] = z[column[k]];
#pragma GCC unroll 8
                    for (int r = 0; r < ROWS; r++) {
                        V gs = g[row[r]];
#pragma GCC unroll 8
                        for (int k = 0; k < ROWS; k++) acc[r][k] += gs * zs[k];
                    }
                }
            for (int r = 0; r < ROWS && q * ROWS + r < p->n; r++) {
                int i = q * ROWS + r;
                for (int k = 0; k < ROWS; k++) {
                    int at = j + k - band->first[i];
                    if (at >= 0 && at < band->count[i]) grad_p[(size_t)i * band->width + at] += NAME(sum)(acc[r][k]);
                }
            }
        }
    }
}

/* ---- the whole layer ---- */

typedef struct {
    long samples, prefix, rows, cols, channels, heads;
    int ddof; /* 0: variance over C; 1: over C - 1, as released */
    double eps;
    const REAL *x, *weight, *bias;       /* weight and bias may be NULL */
    const double *lam_mean, *lam_var;    /* (heads) */
    double *moments;                     /* (samples, prefix + rows * cols, 2): intra-token mean and variance */
    Axis *vertical, *horizontal;         /* (heads); vertical runs over rows */
} Problem;

static long NAME(blocks_per_head)(const Problem *p) {
    return (p->channels / p->heads + LANES - 1) / LANES;
}

static void NAME(make_axes)(Problem *p, const double *position, int radius, double cut) {
    p->vertical = malloc(p->heads * sizeof(Axis)), p->horizontal = malloc(p->heads * sizeof(Axis));
    for (long h = 0; h < p->heads; h++)
        for (int v = 0; v < 2; v++) {
            Axis *axis = (v ? p->vertical : p->horizontal) + h;
            axis->band = band_make(position[3 * h], position[3 * h + 1 + v], v ? p->rows : p->cols, radius, cut);
            axis->forward = NAME(panel_make)(&axis->band, 0);
            axis->transposed = NAME(panel_make)(&axis->band, 1);
        }
}

static void NAME(free_axes)(Problem *p) {
    for (long h = 0; h < 2 * p->heads; h++) {
        Axis *axis = h % 2 ? p->vertical + h / 2 : p->horizontal + h / 2;
        band_free(&axis->band);
        NAME(panel_free)(&axis->forward), NAME(panel_free)(&axis->transposed);
    }
    free(p->vertical), free(p->horizontal);
}

/* Mean and variance of one token over its channels: the mean is corrected in the second pass, so large offsets do no harm. */
static void NAME(row_moments)(const REAL *x, long n, int ddof, double *mean, double *var) {
    V s0 = {0}, s1 = {0}, first = {0}, second = {0}, first1 = {0}, second1 = {0};
    long c = 0;
    double tail = 0;
    for (; c + 2 * LANES <= n; c += 2 * LANES) s0 += NAME(load)(x + c, LANES), s1 += NAME(load)(x + c + LANES, LANES);
    for (; c < n; c++) tail += x[c];
    REAL centre = (NAME(sum)(s0 + s1) + tail) / n;
    double shift = 0, square = 0;
    for (c = 0; c + 2 * LANES <= n; c += 2 * LANES) {
        V a = NAME(load)(x + c, LANES) - centre, b = NAME(load)(x + c + LANES, LANES) - centre;
        first += a, second += a * a, first1 += b, second1 += b * b;
    }
    for (; c < n; c++) shift += x[c] - centre, square += (x[c] - centre) * (x[c] - centre);
    shift = (shift + NAME(sum)(first + first1)) / n, square += NAME(sum)(second + second1);
    *mean = centre + shift;
    *var = fmax(square - n * shift * shift, 0) / (n - ddof > 0 ? n - ddof : 1);
}

/* One tile: a vector of channels of one head of one sample, all patch tokens, centred per channel. */
typedef struct {
    long sample, head, channel;
    int lanes;
    V centre_offset; /* the tile's centre, relative to the sample's reference */
    double reference;
} NAME(Tile);

static NAME(Tile) NAME(load_tile)(const Problem *p, long task, V *x, V *xx) {
    long per_head = NAME(blocks_per_head)(p), dim = p->channels / p->heads, tokens = p->rows * p->cols, n = p->prefix + tokens;
    NAME(Tile) tile = {.sample = task / (p->heads * per_head), .head = task / per_head % p->heads};
    long inside = task % per_head * LANES;
    tile.channel = tile.head * dim + inside;
    tile.lanes = dim - inside < LANES ? dim - inside : LANES;
    const REAL *from = p->x + (tile.sample * n + p->prefix) * p->channels + tile.channel;
    V origin = NAME(load)(from, tile.lanes), partial[4] = {{0}, {0}, {0}, {0}};
    for (long t = 0; t < tokens; t++) {
        x[t] = NAME(load)(from + t * p->channels, tile.lanes);
        partial[t & 3] += x[t] - origin;
    }
    V centre = origin + (partial[0] + partial[1] + partial[2] + partial[3]) / (REAL)tokens;
    for (long t = 0; t < tokens; t++) {
        x[t] -= centre;
        xx[t] = x[t] * x[t];
    }
    tile.reference = (REAL)p->moments[2 * (tile.sample * n + p->prefix)];
    tile.centre_offset = centre - (REAL)tile.reference;
    return tile;
}

static V *NAME(tiles)(const Problem *p, int count) {
    size_t bytes = (size_t)count * p->rows * p->cols * sizeof(V);
    return aligned_alloc(VECTOR_BYTES, bytes);
}

/* mu and sigma^2 of Eqn 5 need P x and P x^2: two passes. A pass over an axis of length 1 would change nothing. */
static void NAME(filter)(const Problem *p, const Axis *vertical, const Axis *horizontal, V *x, V *xx, V *z, V *zz, V *m, V *s) {
    if (p->rows > 1) NAME(apply)(&vertical->forward, x, xx, z, zz, p->cols, p->cols, 1);
    else memcpy(z, x, p->cols * sizeof(V)), memcpy(zz, xx, p->cols * sizeof(V));
    if (p->cols > 1) NAME(apply)(&horizontal->forward, z, zz, m, s, 1, p->rows, p->cols);
    else memcpy(m, z, p->rows * sizeof(V)), memcpy(s, zz, p->rows * sizeof(V));
}

static void NAME(forward)(Problem *p, REAL *y, int threads) {
    long tokens = p->rows * p->cols, n = p->prefix + tokens, c = p->channels;
    long tasks = p->samples * p->heads * NAME(blocks_per_head)(p);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long row = 0; row < p->samples * n; row++) {
            const REAL *x = p->x + row * c;
            double *moments = p->moments + 2 * row;
            NAME(row_moments)(x, c, p->ddof, moments, moments + 1);
            if (row % n >= p->prefix) continue;
            REAL high = moments[0], low = moments[0] - high, scale = 1 / sqrt(moments[1] + p->eps);
            for (long k = 0; k < c; k++) {
                REAL value = (x[k] - high - low) * scale;
                y[row * c + k] = (p->weight ? value * p->weight[k] : value) + (p->bias ? p->bias[k] : 0);
            }
        }
        V *scratch = NAME(tiles)(p, 6), *x = scratch, *xx = x + tokens, *z = xx + tokens, *zz = z + tokens, *m = zz + tokens, *s = m + tokens;
#pragma omp for schedule(static)
        for (long task = 0; task < tasks; task++) {
            NAME(Tile) tile = NAME(load_tile)(p, task, x, xx);
            NAME(filter)(p, p->vertical + tile.head, p->horizontal + tile.head, x, xx, z, zz, m, s);
            V weight = p->weight ? NAME(load)(p->weight + tile.channel, tile.lanes) : NAME(same)(1);
            V bias = p->bias ? NAME(load)(p->bias + tile.channel, tile.lanes) : NAME(same)(0);
            REAL lm = p->lam_mean[tile.head], lv = p->lam_var[tile.head], km = 1 - p->lam_mean[tile.head], kv = 1 - p->lam_var[tile.head];
            const double *moments = p->moments + 2 * (tile.sample * n + p->prefix);
            REAL *to = y + (tile.sample * n + p->prefix) * c + tile.channel;
            for (long t = 0; t < tokens; t++) {
                V variance = s[t] - m[t] * m[t];
                variance = NAME(unless_negative)(variance, variance);
                REAL mean_ln = moments[2 * t] - tile.reference, var_ln = lv * moments[2 * t + 1] + p->eps;
                V numerator = x[t] - km * m[t] - lm * (mean_ln - tile.centre_offset);
                NAME(store)(to + t * c, numerator * NAME(inverse_root)(var_ln + kv * variance) * weight + bias, tile.lanes);
            }
        }
        free(scratch);
    }
}

/* Gradients. `partial` is (samples, blocks, tokens, 2): what the intra-token mean and variance receive from each tile. */
static void NAME(backward)(Problem *p, const REAL *grad_y, REAL *grad_x, double *grad_weight, double *grad_bias,
                           double *grad_lam_mean, double *grad_lam_var, double *grad_position, int threads) {
    long tokens = p->rows * p->cols, n = p->prefix + tokens, c = p->channels, per_head = NAME(blocks_per_head)(p);
    long blocks = p->heads * per_head, tasks = p->samples * blocks;
    size_t size_v = (size_t)p->rows * p->vertical->band.width, size_h = (size_t)p->cols * p->horizontal->band.width;
    size_t size_p = p->heads * (size_v + size_h);
    REAL *partial = malloc((size_t)tasks * tokens * 2 * sizeof(REAL));
    double *grad_p = calloc(threads * size_p, sizeof(double));
    double *lam = calloc(tasks * 2, sizeof(double)), *affine = calloc((size_t)p->samples * c * 2, sizeof(double));
#pragma omp parallel num_threads(threads)
    {
        V *scratch = NAME(tiles)(p, 6), *x = scratch, *xx = x + tokens, *z = xx + tokens, *zz = z + tokens, *m = zz + tokens, *s = m + tokens;
        double *own = grad_p + omp_get_thread_num() * size_p;
#pragma omp for schedule(static)
        for (long task = 0; task < tasks; task++) {
            NAME(Tile) tile = NAME(load_tile)(p, task, x, xx);
            const Axis *vertical = p->vertical + tile.head, *horizontal = p->horizontal + tile.head;
            NAME(filter)(p, vertical, horizontal, x, xx, z, zz, m, s);
            V weight = p->weight ? NAME(load)(p->weight + tile.channel, tile.lanes) : NAME(same)(1);
            REAL lm = p->lam_mean[tile.head], lv = p->lam_var[tile.head], km = 1 - p->lam_mean[tile.head], kv = 1 - p->lam_var[tile.head];
            const double *moments = p->moments + 2 * (tile.sample * n + p->prefix);
            const REAL *from = grad_y + (tile.sample * n + p->prefix) * c + tile.channel;
            REAL *to = grad_x + (tile.sample * n + p->prefix) * c + tile.channel, *sums = partial + task * tokens * 2;
            V dweight = {0}, dbias = {0}, dlm = {0}, dlv = {0};
            for (long t = 0; t < tokens; t++) {
                V variance = s[t] - m[t] * m[t];
                V used = NAME(unless_negative)(variance, NAME(same)(kv)); /* a clamped variance passes no gradient */
                variance = NAME(unless_negative)(variance, variance);
                REAL mean_ln = moments[2 * t] - tile.reference, var_ln = moments[2 * t + 1];
                V apart = mean_ln - tile.centre_offset; /* intra-token mean, in the tile's coordinates */
                V numerator = x[t] - km * m[t] - lm * apart;
                V scale = NAME(inverse_root)(lv * var_ln + (REAL)p->eps + kv * variance);
                V gy = NAME(load)(from + t * c, tile.lanes), unit = numerator * scale;
                dweight += gy * unit, dbias += gy;
                V dn = gy * weight * scale, dvar = dn * unit * scale * (REAL)-0.5;
                dlm += dn * (m[t] - apart), dlv += dvar * (var_ln - variance);
                sums[2 * t] = -lm * NAME(sum)(dn), sums[2 * t + 1] = lv * NAME(sum)(dvar);
                NAME(store)(to + t * c, dn, tile.lanes);
                V ds = used * dvar;
                m[t] = -km * dn - 2 * m[t] * ds, s[t] = ds;
            }
            lam[2 * task] = NAME(sum)(dlm), lam[2 * task + 1] = NAME(sum)(dlv);
            for (int l = 0; l < tile.lanes; l++) {
                double *to_affine = affine + 2 * (tile.sample * c + tile.channel + l);
                to_affine[0] = dweight[l], to_affine[1] = dbias[l];
            }
            if (grad_position && p->cols > 1)
                NAME(outer)(horizontal, own + p->heads * size_v + tile.head * size_h, m, s, z, zz, 1, p->rows, p->cols);
            if (p->cols > 1) NAME(apply)(&horizontal->transposed, m, s, z, zz, 1, p->rows, p->cols);
            else memcpy(z, m, p->rows * sizeof(V)), memcpy(zz, s, p->rows * sizeof(V));
            if (grad_position && p->rows > 1)
                NAME(outer)(vertical, own + tile.head * size_v, z, zz, x, xx, p->cols, p->cols, 1);
            if (p->rows > 1) NAME(apply)(&vertical->transposed, z, zz, m, s, p->cols, p->cols, 1);
            else memcpy(m, z, p->cols * sizeof(V)), memcpy(s, zz, p->cols * sizeof(V));
            for (long t = 0; t < tokens; t++) {
                V dn = NAME(load)(to + t * c, tile.lanes);
                NAME(store)(to + t * c, dn + m[t] + 2 * x[t] * s[t], tile.lanes);
            }
        }
        free(scratch);
        /* What the intra-token statistics pass on to every channel of their token. */
#pragma omp for schedule(static)
        for (long row = 0; row < p->samples * n; row++) {
            const REAL *in = p->x + row * c, *gy = grad_y + row * c;
            REAL *out = grad_x + row * c;
            double mean = p->moments[2 * row], var = p->moments[2 * row + 1];
            long sample = row / n, t = row % n - p->prefix, divisor = c - p->ddof > 0 ? c - p->ddof : 1;
            REAL high = mean, low = mean - high, scale = 1 / sqrt(var + p->eps);
            double dmean = 0, dvar = 0;
            if (t < 0) { /* a prefix token: LayerNorm's own backward */
                for (long k = 0; k < c; k++) {
                    REAL g = gy[k] * (p->weight ? p->weight[k] : 1), unit = (in[k] - high - low) * scale;
                    out[k] = g * scale;
                    dmean -= g * scale, dvar -= 0.5 * g * unit * scale * scale;
                }
            } else
                for (long b = 0; b < blocks; b++) {
                    const REAL *sums = partial + ((sample * blocks + b) * tokens + t) * 2;
                    dmean += sums[0], dvar += sums[1];
                }
            REAL add = dmean / c, slope = 2 * dvar / divisor;
            for (long k = 0; k < c; k++) out[k] += add + slope * (in[k] - high - low);
        }
    }
    for (long sample = 0; sample < p->samples; sample++)
        for (long k = 0; k < c; k++) {
            grad_weight[k] += affine[2 * (sample * c + k)], grad_bias[k] += affine[2 * (sample * c + k) + 1];
            for (long t = 0; t < p->prefix; t++) {
                long row = sample * n + t;
                double unit = (p->x[row * c + k] - p->moments[2 * row]) / sqrt(p->moments[2 * row + 1] + p->eps);
                grad_weight[k] += grad_y[row * c + k] * unit, grad_bias[k] += grad_y[row * c + k];
            }
        }
    for (long task = 0; task < tasks; task++) {
        long head = task / per_head % p->heads;
        grad_lam_mean[head] += lam[2 * task], grad_lam_var[head] += lam[2 * task + 1];
    }
    if (grad_position) {
        for (int thread = 1; thread < threads; thread++)
            for (size_t k = 0; k < size_p; k++) grad_p[k] += grad_p[thread * size_p + k];
        for (long h = 0; h < p->heads; h++) {
            band_backward(&p->horizontal[h].band, grad_p + p->heads * size_v + h * size_h, grad_position + 3 * h, grad_position + 3 * h + 1);
            band_backward(&p->vertical[h].band, grad_p + h * size_v, grad_position + 3 * h, grad_position + 3 * h + 2);
        }
    }
    free(partial), free(grad_p), free(lam), free(affine);
}

/* ---- entries, called through ctypes; all arrays contiguous, row-major ---- */

/* shape: samples, prefix, rows, cols, channels, heads, ddof, radius (-1: none), threads */
#define PROBLEM \
    Problem p = {shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], shape[6], eps, x, weight, bias, lam_mean, lam_var, moments, NULL, NULL}; \
    NAME(make_axes)(&p, position, shape[7], cut)

void NAME(dtn_forward)(const long *shape, double eps, double cut, const REAL *x, const REAL *weight, const REAL *bias, const double *lam_mean,
                       const double *lam_var, const double *position, double *moments, REAL *y) {
    PROBLEM;
    NAME(forward)(&p, y, shape[8]);
    NAME(free_axes)(&p);
}

void NAME(dtn_backward)(const long *shape, double eps, double cut, const REAL *x, const REAL *weight, const REAL *bias, const double *lam_mean,
                        const double *lam_var, const double *position, double *moments, const REAL *grad_y, REAL *grad_x, double *grad_weight,
                        double *grad_bias, double *grad_lam_mean, double *grad_lam_var, double *grad_position) {
    PROBLEM;
    NAME(backward)(&p, grad_y, grad_x, grad_weight, grad_bias, grad_lam_mean, grad_lam_var, grad_position, shape[8]);
    NAME(free_axes)(&p);
}

#undef PROBLEM
#undef V
#undef Panel
#undef Axis
#undef Problem
#undef LANES
#undef INLINE

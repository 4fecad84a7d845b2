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
#ifdef __AVX512F__
    if (sizeof(REAL) == 4) { /* an estimate of 14 bits and one Newton step cost a fifth of a root and a division */
        V guess = (V)_mm512_rsqrt14_ps((__m512)v);
        V half = v * (REAL)0.5 * guess;
        return guess * ((REAL)1.5 - half * guess);
    }
#endif
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

/* Sums over the lanes of `count` vectors (a power of two, at most LANES) at once: each step adds pairs of lanes and packs
   two vectors into one, which costs far less than `count` single sums. Lanes 0..count-1 of the result hold the sums. */
INLINE V NAME(sums)(V *v, const int count) {
    typedef __typeof__(v[0] < 0) Index;
    Index even, odd;
    for (int l = 0; l < LANES; l++) even[l] = 2 * l, odd[l] = 2 * l + 1;
    int left = count, width = LANES;
#pragma GCC unroll 8
    for (; left > 1; left /= 2, width /= 2)
#pragma GCC unroll 16
        for (int k = 0; k < left / 2; k++) v[k] = __builtin_shuffle(v[2 * k], v[2 * k + 1], even) + __builtin_shuffle(v[2 * k], v[2 * k + 1], odd);
    for (; width > 1; width /= 2) v[0] = __builtin_shuffle(v[0], even) + __builtin_shuffle(v[0], odd);
    return v[0];
}

INLINE REAL NAME(sum)(V v) { return NAME(sums)(&v, 1)[0]; }

/* ---- kernels packed for the passes: ROWS rows side by side, so that one column of them is one short read ---- */

typedef struct {
    int n, blocks, *from, *to; /* block q holds rows q*ROWS.. and columns from[q] <= j < to[q] */
    long *at;
    REAL *w; /* w[at[q] + (j - from[q]) * ROWS + r] = P[q*ROWS + r][j] */
} Panel;

typedef struct {
    Band band;
    Panel forward, transposed;
    int run_from, run_to; /* whole blocks of rows, away from the borders, that hold the same weights */
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

/* acc[r][k] += sum over lines of g[r] z[k] for one tensor. Not inlined: alone, it fits the registers. */
static __attribute__((noinline)) void NAME(outer_block)(V acc[ROWS][ROWS], const V *g, const V *z, long step, long lines, long gap) {
    V sum[ROWS][ROWS];
    memcpy(sum, acc, sizeof sum);
    for (; lines > 0; lines--, g += gap, z += gap) {
        V zs[ROWS];
#pragma GCC unroll 8
        for (int k = 0; k < ROWS; k++) zs[k] = z[k * step];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int k = 0; k < ROWS; k++) sum[r][k] += g[r * step] * zs[k];
    }
    memcpy(acc, sum, sizeof sum);
}

/* grad_P[i][j] += sum over lines, lanes and the two tensors of g[i] z[j], only where P[i][j] is not cut, for a block of rows. */
static void NAME(outer_rows)(const Axis *axis, double *grad_p, const V *g0, const V *g1, const V *z0, const V *z1, long step, long lines, long gap, int q) {
    const Band *band = &axis->band;
    /* At the end of an axis the last ROWS rows or columns are taken again, as far as there are so many. */
    int n = band->n, last = n > ROWS ? n - ROWS : 0, i0 = q * ROWS < last ? q * ROWS : last;
    for (int j = axis->forward.from[q]; j < axis->forward.to[q]; j += ROWS) {
        int j0 = j < last ? j : last;
        V acc[ROWS][ROWS] = {0};
        if (n >= ROWS) {
            NAME(outer_block)(acc, g0 + i0 * step, z0 + j0 * step, step, lines, gap);
            NAME(outer_block)(acc, g1 + i0 * step, z1 + j0 * step, step, lines, gap);
        } else
            for (long l = 0; l < lines * gap; l += gap)
                for (int r = 0; r < n; r++)
                    for (int k = 0; k < n; k++) acc[r][k] += g0[r * step + l] * z0[k * step + l] + g1[r * step + l] * z1[k * step + l];
        REAL total[ROWS * ROWS];
        enum { AT_ONCE = LANES < ROWS * ROWS ? LANES : ROWS * ROWS };
#pragma GCC unroll 8
        for (int k = 0; k < ROWS * ROWS; k += AT_ONCE) NAME(store)(total + k, NAME(sums)(&acc[0][0] + k, AT_ONCE), AT_ONCE);
        for (int i = q * ROWS; i < n && i < q * ROWS + ROWS; i++)
            for (int k = j; k < n && k < j + ROWS; k++) {
                int at = k - band->first[i];
                if (at >= 0 && at < band->count[i]) grad_p[(size_t)i * band->width + at] += total[(i - i0) * ROWS + k - j0];
            }
    }
}

/* The same for rows r0 <= i < r1 that all hold the same weights: what matters is the sum over these rows for each offset,
   so lanes are summed once per offset. The result goes to row r0, which stands for all of them. */
static void NAME(outer_run)(const Band *band, double *grad_p, const V *g0, const V *g1, const V *z0, const V *z1, long step, long lines, long gap, int r0, int r1) {
    enum { OFFSETS = 8, STRETCH = OFFSETS + 1 };
    int count = band->count[r0], low = band->first[r0] - r0;
    for (int k0 = 0; k0 < count; k0 += OFFSETS) {
        int offsets = count - k0 < OFFSETS ? count - k0 : OFFSETS;
        V acc[OFFSETS] = {0};
        for (long l = 0; l < lines * gap; l += gap)
            for (int tensor = 0; tensor < 2; tensor++) {
                const V *g = (tensor ? g1 : g0) + l, *z = (tensor ? z1 : z0) + l;
                int i = r0;
                if (offsets == OFFSETS)
                    for (; i + 1 < r1; i += 2) { /* two rows share all but one of their sources */
                        V a = g[i * step], b = g[(i + 1) * step], zs[STRETCH];
                        const V *from = z + (i + low + k0) * step;
#pragma GCC unroll 16
                        for (int k = 0; k < STRETCH; k++) zs[k] = from[i + 1 + low + k0 + k < band->n || k < OFFSETS ? k * step : 0];
#pragma GCC unroll 16
                        for (int k = 0; k < OFFSETS; k++) acc[k] += a * zs[k] + b * zs[k + 1];
                    }
                for (; i < r1; i++)
                    for (int k = 0; k < offsets; k++) acc[k] += g[i * step] * z[(i + low + k0 + k) * step];
            }
        enum { AT_ONCE = LANES < OFFSETS ? LANES : OFFSETS };
        REAL total[OFFSETS];
        for (int k = 0; k < OFFSETS; k += AT_ONCE) NAME(store)(total + k, NAME(sums)(acc + k, AT_ONCE), AT_ONCE);
        for (int k = 0; k < offsets; k++) grad_p[(size_t)r0 * band->width + k0 + k] += total[k];
    }
}

/* The gradient of a kernel's two numbers: that of its entries, held in scratch memory, passed through the softmax. */
static void NAME(outer)(const Axis *axis, double *grad_a2, double *grad_a1, const V *g0, const V *g1, const V *z0, const V *z1, long step, long lines, long gap) {
    const Band *band = &axis->band;
    double *grad_p = workspace(2, (size_t)band->n * band->width * sizeof(double));
    for (int i = 0; i < band->n; i = band_next(i, axis->run_from, axis->run_to))
        memset(grad_p + (size_t)i * band->width, 0, band->width * sizeof(double));
    for (int q = 0; q < axis->forward.blocks; q++)
        if (q * ROWS < axis->run_from || q * ROWS >= axis->run_to) NAME(outer_rows)(axis, grad_p, g0, g1, z0, z1, step, lines, gap, q);
    if (axis->run_from < axis->run_to) NAME(outer_run)(band, grad_p, g0, g1, z0, z1, step, lines, gap, axis->run_from, axis->run_to);
    band_backward(band, grad_p, axis->run_from, axis->run_to, grad_a2, grad_a1);
}

/* ---- the whole layer ---- */

typedef struct {
    long samples, prefix, rows, cols, channels, heads;
    const int64_t *lengths; /* (samples), 1-D only: how many rows of each sample are real; NULL: all of them */
    int ddof; /* 0: variance over C; 1: over C - 1, as released */
    double eps;
    const REAL *x, *weight, *bias;       /* weight and bias may be NULL */
    const double *lam_mean, *lam_var;    /* (heads) */
    double *moments;                     /* (samples, prefix + rows * cols, 2): intra-token mean and variance */
    Axis *vertical, *horizontal;         /* (heads); vertical runs over rows. With lengths (samples, heads) */
} Problem;

static Axis NAME(make_axis)(double a2, double a1, int n, int radius, double cut, int backward) {
    Axis axis = {.band = band_make(a2, a1, n, radius, cut)};
    axis.forward = NAME(panel_make)(&axis.band, 0);
    if (backward) {
        axis.transposed = NAME(panel_make)(&axis.band, 1);
        int middle = n / 2, from = middle, to = middle + 1;
        while (from > 0 && band_same(&axis.band, from - 1, middle)) from--;
        while (to < n && band_same(&axis.band, to, middle)) to++;
        axis.run_from = (from + ROWS - 1) / ROWS * ROWS, axis.run_to = to / ROWS * ROWS;
    }
    return axis;
}

static long NAME(axes)(const Problem *p) { return p->heads * (p->lengths ? p->samples : 1); }

static void NAME(make_axes)(Problem *p, const double *position, int radius, double cut, int backward, int threads) {
    long axes = NAME(axes)(p);
    p->vertical = malloc(axes * sizeof(Axis)), p->horizontal = malloc(axes * sizeof(Axis));
#pragma omp parallel for num_threads(threads) schedule(static) if (p->lengths)
    for (long k = 0; k < axes; k++) {
        const double *a = position + 3 * (k % p->heads);
        int rows = !p->lengths ? p->rows : p->lengths[k / p->heads] > 0 ? p->lengths[k / p->heads] : 1;
        p->vertical[k] = NAME(make_axis)(a[0], a[2], rows, radius, cut, backward);
        p->horizontal[k] = NAME(make_axis)(a[0], a[1], p->cols, radius, cut, backward);
    }
}

static void NAME(free_axes)(Problem *p) {
    for (long k = 0; k < 2 * NAME(axes)(p); k++) {
        Axis *axis = k % 2 ? p->vertical + k / 2 : p->horizontal + k / 2;
        band_free(&axis->band);
        NAME(panel_free)(&axis->forward), NAME(panel_free)(&axis->transposed);
    }
    free(p->vertical), free(p->horizontal);
}

/* The problem as one sample sees it: its own length, and its own kernels. Memory strides stay those of the whole. */
static Problem NAME(of_sample)(const Problem *p, long sample) {
    Problem own = *p;
    if (p->lengths) own.rows = p->lengths[sample], own.vertical += sample * p->heads, own.horizontal += sample * p->heads;
    return own;
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

/* A tile: a few neighbouring vectors of channels ("blocks") of one head of one sample, all patch tokens. Reading and writing
   several blocks of a token together follows memory order; all work in between is on one block at a time, in cache. */
typedef struct {
    long sample, head, channel; /* the first channel */
    int blocks, last_lanes;     /* lanes in use in the last block; all others are full */
    long start;                 /* where the tile begins in x */
} NAME(Tile);

#define CACHE_BYTES 2000000 /* what a tile and its scratch may take of the second-level cache */
#define SCRATCH 5           /* tensors of one block that are kept beside the tile's own */

static int NAME(blocks_per_tile)(const Problem *p, int kept) {
    long per_head = (p->channels / p->heads + LANES - 1) / LANES, block = p->rows * p->cols * sizeof(V);
    long most = (CACHE_BYTES / block - SCRATCH) / kept;
    if (most < 1) most = 1;
    long tiles = (per_head + most - 1) / most;
    return (per_head + tiles - 1) / tiles;
}

static long NAME(tiles_per_head)(const Problem *p, int blocks) {
    return (p->channels / p->heads + blocks * LANES - 1) / (blocks * LANES);
}

static NAME(Tile) NAME(tile)(const Problem *p, long task, int blocks) {
    long dim = p->channels / p->heads, per_head = NAME(tiles_per_head)(p, blocks);
    long inside = task % per_head * blocks * LANES, left = dim - inside < blocks * LANES ? dim - inside : blocks * LANES;
    NAME(Tile) tile = {.sample = task / (p->heads * per_head), .head = task / per_head % p->heads};
    tile.channel = tile.head * dim + inside;
    tile.blocks = (left + LANES - 1) / LANES, tile.last_lanes = left - (tile.blocks - 1) * LANES;
    tile.start = (tile.sample * (p->prefix + p->rows * p->cols) + p->prefix) * p->channels + tile.channel;
    return tile;
}

INLINE long NAME(width)(const NAME(Tile) *tile) { return (tile->blocks - 1) * LANES + tile->last_lanes; }

INLINE int NAME(lanes)(const NAME(Tile) *tile, int block) { return block == tile->blocks - 1 ? tile->last_lanes : LANES; }

static void NAME(read_tile)(const Problem *p, const NAME(Tile) *tile, const REAL *array, V *to) {
    long tokens = p->rows * p->cols;
    const REAL *from = array + tile->start;
    for (long t = 0; t < tokens; t++, from += p->channels) {
        for (int b = 0; b < tile->blocks; b++) {
            __builtin_prefetch(from + b * LANES + 16 * p->channels);
            to[b * tokens + t] = NAME(load)(from + b * LANES, NAME(lanes)(tile, b));
        }
    }
}

static void NAME(write_tile)(const Problem *p, const NAME(Tile) *tile, const V *from, REAL *array) {
    long tokens = p->rows * p->cols;
    REAL *to = array + tile->start;
    for (long t = 0; t < tokens; t++, to += p->channels)
        for (int b = 0; b < tile->blocks; b++) {
            __builtin_prefetch(to + b * LANES + 16 * p->channels, 1);
            NAME(store)(to + b * LANES, from[b * tokens + t], NAME(lanes)(tile, b));
        }
}

/* Move a block to coordinates in which each channel has mean 0, and square it: second moments of centred numbers do not
   cancel. Returns the centre, relative to the sample's reference. No result depends on the exact centre. */
static V NAME(centre)(const Problem *p, REAL reference, V *x, V *xx) {
    long tokens = p->rows * p->cols;
    V origin = x[0], partial[4] = {{0}, {0}, {0}, {0}};
    for (long t = 0; t < tokens; t++) partial[t & 3] += x[t] - origin;
    V centre = origin + (partial[0] + partial[1] + partial[2] + partial[3]) / (REAL)tokens;
    for (long t = 0; t < tokens; t++) {
        x[t] -= centre;
        xx[t] = x[t] * x[t];
    }
    return centre - reference;
}

/* P x and P x^2 into m and s; z and zz keep the result of the first pass where there are two. A pass over an axis of length 1
   would change nothing and is left out. */
static void NAME(filter)(const Problem *p, long head, V *x, V *xx, V *z, V *zz, V *m, V *s) {
    const Panel *vertical = &p->vertical[head].forward, *horizontal = &p->horizontal[head].forward;
    if (p->cols == 1) NAME(apply)(vertical, x, xx, m, s, 1, 1, 1);
    else if (p->rows == 1) NAME(apply)(horizontal, x, xx, m, s, 1, 1, 1);
    else NAME(apply)(vertical, x, xx, z, zz, p->cols, p->cols, 1), NAME(apply)(horizontal, z, zz, m, s, 1, p->rows, p->cols);
}

/* The transpose: gradients of m and s (overwritten) become gradients of x and x^2 in z and zz, and grad_a (3) collects
   those of the kernels' numbers. On entry z and zz hold what `filter` left there. */
static void NAME(filter_backward)(const Problem *p, long head, const V *x, const V *xx, V *z, V *zz, V *m, V *s, double *grad_a) {
    const Axis *vertical = p->vertical + head, *horizontal = p->horizontal + head;
    if (p->cols == 1 || p->rows == 1) {
        const Axis *axis = p->cols == 1 ? vertical : horizontal;
        NAME(outer)(axis, grad_a, grad_a + (p->cols == 1 ? 2 : 1), m, s, x, xx, 1, 1, 1);
        NAME(apply)(&axis->transposed, m, s, z, zz, 1, 1, 1);
        return;
    }
    NAME(outer)(horizontal, grad_a, grad_a + 1, m, s, z, zz, 1, p->rows, p->cols);
    NAME(apply)(&horizontal->transposed, m, s, z, zz, 1, p->rows, p->cols);
    NAME(outer)(vertical, grad_a, grad_a + 2, z, zz, x, xx, p->cols, p->cols, 1);
    NAME(apply)(&vertical->transposed, z, zz, m, s, p->cols, p->cols, 1);
    size_t bytes = p->rows * p->cols * sizeof(V);
    memcpy(z, m, bytes), memcpy(zz, s, bytes);
}

static void NAME(forward)(Problem *p, REAL *y, int threads) {
    long tokens = p->rows * p->cols, n = p->prefix + tokens, c = p->channels;
    int most = NAME(blocks_per_tile)(p, 1);
    long tasks = p->samples * p->heads * NAME(tiles_per_head)(p, most);
#pragma omp parallel num_threads(threads) firstprivate(tokens)
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
        V *tile_x = workspace(0, (most + SCRATCH) * tokens * sizeof(V));
        V *xx = tile_x + most * tokens, *z = xx + tokens, *zz = z + tokens, *m = zz + tokens, *s = m + tokens;
#pragma omp for schedule(static)
        for (long task = 0; task < tasks; task++) {
            NAME(Tile) tile = NAME(tile)(p, task, most);
            Problem own = NAME(of_sample)(p, tile.sample);
            tokens = own.rows * own.cols;
            if (!tokens) continue;
            NAME(read_tile)(&own, &tile, p->x, tile_x);
            REAL lm = p->lam_mean[tile.head], lv = p->lam_var[tile.head], km = 1 - p->lam_mean[tile.head], kv = 1 - p->lam_var[tile.head];
            const double *moments = p->moments + 2 * (tile.sample * n + p->prefix);
            double reference = (REAL)moments[0];
            for (int b = 0; b < tile.blocks; b++) {
                V *x = tile_x + b * tokens, offset = NAME(centre)(&own, reference, x, xx);
                NAME(filter)(&own, tile.head, x, xx, z, zz, m, s);
                long channel = tile.channel + b * LANES;
                V weight = p->weight ? NAME(load)(p->weight + channel, NAME(lanes)(&tile, b)) : NAME(same)(1);
                V bias = p->bias ? NAME(load)(p->bias + channel, NAME(lanes)(&tile, b)) : NAME(same)(0);
                for (long t = 0; t < tokens; t++) {
                    V variance = s[t] - m[t] * m[t];
                    variance = NAME(unless_negative)(variance, variance);
                    REAL mean_ln = moments[2 * t] - reference, var_ln = lv * moments[2 * t + 1] + p->eps;
                    V numerator = x[t] - km * m[t] - lm * (mean_ln - offset);
                    x[t] = numerator * NAME(inverse_root)(var_ln + kv * variance) * weight + bias;
                }
            }
            NAME(write_tile)(&own, &tile, tile_x, y);
        }
    }
}

/* The gradients of a token's intra-token mean and variance, passed on to its channels. */
static void NAME(add_intra)(const Problem *p, long row, double dmean, double dvar, REAL *grad_x) {
    long c = p->channels, divisor = c - p->ddof > 0 ? c - p->ddof : 1;
    const REAL *x = p->x + row * c;
    REAL *to = grad_x + row * c, high = p->moments[2 * row], low = p->moments[2 * row] - high, add = dmean / c, slope = 2 * dvar / divisor;
    for (long k = 0; k < c; k++) to[k] += add + slope * (x[k] - high - low);
}

/* Gradients. `partial` is (tasks, 2, groups of LANES tokens): what the intra-token mean and variance of each token receive from
   each tile. */
static void NAME(backward)(Problem *p, const REAL *grad_y, REAL *grad_x, double *grad_weight, double *grad_bias,
                           double *grad_lam_mean, double *grad_lam_var, double *grad_position, int threads) {
    long tokens = p->rows * p->cols, n = p->prefix + tokens, c = p->channels, groups = (tokens + LANES - 1) / LANES;
    int most = NAME(blocks_per_tile)(p, 2);
    long per_head = NAME(tiles_per_head)(p, most), per_sample = p->heads * per_head, tasks = p->samples * per_sample;
    V *partial = workspace(1, (size_t)tasks * 2 * groups * sizeof(V));
    long *unfinished = malloc(p->samples * sizeof(long)); /* tiles of each sample that are still to come */
    for (long sample = 0; sample < p->samples; sample++) unfinished[sample] = per_sample;
    double *per_task = calloc(tasks * 5, sizeof(double)); /* gradients of both lambdas and of the position */
    double *affine = calloc((size_t)p->samples * c * 2, sizeof(double));
#pragma omp parallel num_threads(threads) firstprivate(tokens)
    {
        V *tile_x = workspace(0, (2 * most + SCRATCH) * tokens * sizeof(V)), *tile_g = tile_x + most * tokens;
        V *xx = tile_g + most * tokens, *z = xx + tokens, *zz = z + tokens, *m = zz + tokens, *s = m + tokens;
#pragma omp for schedule(static)
        for (long task = 0; task < tasks; task++) {
            NAME(Tile) tile = NAME(tile)(p, task, most);
            Problem own = NAME(of_sample)(p, tile.sample);
            tokens = own.rows * own.cols;
            for (long row = own.rows; row < p->rows; row++) memset(grad_x + tile.start + row * c, 0, NAME(width)(&tile) * sizeof(REAL));
            if (!tokens) continue;
            double *mine = per_task + 5 * task;
            NAME(read_tile)(&own, &tile, p->x, tile_x);
            NAME(read_tile)(&own, &tile, grad_y, tile_g);
            REAL lm = p->lam_mean[tile.head], lv = p->lam_var[tile.head], km = 1 - p->lam_mean[tile.head], kv = 1 - p->lam_var[tile.head];
            const double *moments = p->moments + 2 * (tile.sample * n + p->prefix);
            double reference = (REAL)moments[0];
            for (int b = 0; b < tile.blocks; b++) {
                V *x = tile_x + b * tokens, *g = tile_g + b * tokens, offset = NAME(centre)(&own, reference, x, xx);
                NAME(filter)(&own, tile.head, x, xx, z, zz, m, s);
                int lanes = NAME(lanes)(&tile, b);
                V weight = p->weight ? NAME(load)(p->weight + tile.channel + b * LANES, lanes) : NAME(same)(1);
                V dweight = {0}, dbias = {0}, dlm = {0}, dlv = {0}, to_mean[LANES], to_var[LANES];
                for (long t = 0; t < tokens; t++) {
                    V variance = s[t] - m[t] * m[t];
                    V used = NAME(unless_negative)(variance, NAME(same)(kv)); /* a clamped variance passes no gradient */
                    variance = NAME(unless_negative)(variance, variance);
                    REAL mean_ln = moments[2 * t] - reference, var_ln = moments[2 * t + 1];
                    V apart = mean_ln - offset; /* intra-token mean, in the block's coordinates */
                    V numerator = x[t] - km * m[t] - lm * apart;
                    V scale = NAME(inverse_root)(lv * var_ln + (REAL)p->eps + kv * variance);
                    V unit = numerator * scale;
                    dweight += g[t] * unit, dbias += g[t];
                    V dn = g[t] * weight * scale, dvar = dn * unit * scale * (REAL)-0.5;
                    dlm += dn * (m[t] - apart), dlv += dvar * (var_ln - variance);
                    to_mean[t % LANES] = dn, to_var[t % LANES] = dvar;
                    if (t % LANES == LANES - 1 || t == tokens - 1) {
                        V *sums = partial + task * 2 * groups + t / LANES;
                        V dmean = -lm * NAME(sums)(to_mean, LANES), dvar = lv * NAME(sums)(to_var, LANES);
                        sums[0] = b ? sums[0] + dmean : dmean, sums[groups] = b ? sums[groups] + dvar : dvar;
                    }
                    V ds = used * dvar;
                    m[t] = -km * dn - 2 * m[t] * ds, s[t] = ds;
                    g[t] = dn;
                }
                mine[0] += NAME(sum)(dlm), mine[1] += NAME(sum)(dlv);
                for (int l = 0; l < lanes; l++) {
                    double *to_affine = affine + 2 * (tile.sample * c + tile.channel + b * LANES + l);
                    to_affine[0] = dweight[l], to_affine[1] = dbias[l];
                }
                NAME(filter_backward)(&own, tile.head, x, xx, z, zz, m, s, mine + 2);
                for (long t = 0; t < tokens; t++) g[t] += z[t] + 2 * x[t] * zz[t];
            }
            NAME(write_tile)(&own, &tile, tile_g, grad_x);
            /* Whoever writes the last tile of a sample adds what comes through the intra-token statistics, while it is in cache. */
            if (__atomic_sub_fetch(unfinished + tile.sample, 1, __ATOMIC_ACQ_REL)) continue;
            const V *first = partial + tile.sample * per_sample * 2 * groups;
            for (long group = 0; group * LANES < tokens; group++) {
                V dmean = {0}, dvar = {0};
                for (long k = 0; k < per_sample; k++) dmean += first[k * 2 * groups + group], dvar += first[(k * 2 + 1) * groups + group];
                for (long l = 0; l < LANES && group * LANES + l < tokens; l++)
                    NAME(add_intra)(p, tile.sample * n + p->prefix + group * LANES + l, dmean[l], dvar[l], grad_x);
            }
        }
    }
    for (long sample = 0; sample < p->samples; sample++) /* prefix tokens: LayerNorm's own backward */
        for (long row = sample * n; row < sample * n + p->prefix; row++) {
            const REAL *in = p->x + row * c, *gy = grad_y + row * c;
            double mean = p->moments[2 * row], scale = 1 / sqrt(p->moments[2 * row + 1] + p->eps), dmean = 0, dvar = 0;
            for (long k = 0; k < c; k++) {
                double g = gy[k] * (p->weight ? p->weight[k] : 1), unit = (in[k] - mean) * scale;
                grad_x[row * c + k] = g * scale;
                dmean -= g * scale, dvar -= 0.5 * g * unit * scale * scale;
                grad_weight[k] += gy[k] * unit, grad_bias[k] += gy[k];
            }
            NAME(add_intra)(p, row, dmean, dvar, grad_x);
        }
    for (long sample = 0; sample < p->samples; sample++)
        for (long k = 0; k < c; k++)
            grad_weight[k] += affine[2 * (sample * c + k)], grad_bias[k] += affine[2 * (sample * c + k) + 1];
    for (long task = 0; task < tasks; task++) {
        long head = task / per_head % p->heads;
        const double *mine = per_task + 5 * task;
        grad_lam_mean[head] += mine[0], grad_lam_var[head] += mine[1];
        for (int k = 0; k < 3; k++) grad_position[3 * head + k] += mine[2 + k];
    }
    free(unfinished), free(per_task), free(affine);
}

/* ---- entries, called through ctypes; all arrays contiguous, row-major ---- */

/* shape: samples, prefix, rows, cols, channels, heads, ddof, radius (-1: none), threads; lengths may be NULL */
#define PROBLEM \
    Problem p = {shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], lengths, shape[6], eps, x, weight, bias, lam_mean, lam_var, moments, NULL, NULL}

void NAME(dtn_forward)(const int64_t *shape, const int64_t *lengths, double eps, double cut, const REAL *x, const REAL *weight, const REAL *bias,
                       const double *lam_mean, const double *lam_var, const double *position, double *moments, REAL *y) {
    PROBLEM;
    NAME(make_axes)(&p, position, shape[7], cut, 0, shape[8]);
    NAME(forward)(&p, y, shape[8]);
    NAME(free_axes)(&p);
}

void NAME(dtn_backward)(const int64_t *shape, const int64_t *lengths, double eps, double cut, const REAL *x, const REAL *weight, const REAL *bias,
                        const double *lam_mean, const double *lam_var, const double *position, double *moments, const REAL *grad_y, REAL *grad_x, double *grad_weight,
                        double *grad_bias, double *grad_lam_mean, double *grad_lam_var, double *grad_position) {
    PROBLEM;
    NAME(make_axes)(&p, position, shape[7], cut, 1, shape[8]);
    NAME(backward)(&p, grad_y, grad_x, grad_weight, grad_bias, grad_lam_mean, grad_lam_var, grad_position, shape[8]);
    NAME(free_axes)(&p);
}

#undef PROBLEM
#undef CACHE_BYTES
#undef SCRATCH
#undef V
#undef Panel
#undef Axis
#undef Problem
#undef LANES
#undef INLINE

/* Positional kernels along one axis: P[i][j] = softmax over j of a2 (j-i)^2 + a1 (j-i), |j-i| <= radius. */

typedef struct {
    int n, width;       /* rows; room per row */
    int *first, *count; /* row i: P[i][first[i] + k] = p[i * width + k] for k < count[i]; all else is zero */
    double *p;
} Band;

static Band band_make(double a2, double a1, int n, int radius, double cut) {
    if (radius < 0 || radius > n - 1) radius = n - 1;
    Band band = {n, 2 * radius + 1 < n ? 2 * radius + 1 : n, malloc(n * sizeof(int)), malloc(n * sizeof(int)), NULL};
    band.p = malloc((size_t)n * band.width * sizeof(double));
    /* exp(score - highest score) by offset, if no offset underflows: then a row needs no exponentials of its own. */
    double *table = malloc((2 * radius + 1) * sizeof(double)), highest = -INFINITY, lowest = INFINITY;
    for (int d = -radius; d <= radius; d++) highest = fmax(highest, (a2 * d + a1) * d), lowest = fmin(lowest, (a2 * d + a1) * d);
    int safe = highest - lowest < 600;
    for (int d = -radius; safe && d <= radius; d++) table[d + radius] = exp((a2 * d + a1) * d - highest);
    for (int i = 0, known_from = 1, known_to = 0; i < n; i++) {
        int from = i < radius ? -i : -radius, to = n - 1 - i < radius ? n - 1 - i : radius;
        double *p = band.p + (size_t)i * band.width;
        if (from == known_from && to == known_to) { /* all rows away from the borders are the same */
            memcpy(p, p - band.width, band.width * sizeof(double));
            band.first[i] = band.first[i - 1] + 1;
            band.count[i] = band.count[i - 1];
            continue;
        }
        known_from = from, known_to = to;
        double top = -INFINITY, sum = 0;
        for (int d = from; d <= to; d++) top = fmax(top, p[d - from] = (a2 * d + a1) * d);
        double scale = safe ? exp(highest - top) : 0;
        int low = to + 1, high = from - 1; /* first and last offset whose weight matters */
        for (int d = from; d <= to; d++) {
            /* The stored score, not the expression again: fused arithmetic could give it another rounding than `top`. */
            double weight = safe ? table[d + radius] * scale : exp(p[d - from] - top);
            if (weight < cut) weight = 0; /* relative to the row's own maximum, which has weight 1 */
            p[d - from] = weight;
            sum += weight;
            if (weight > 0) {
                if (low > to) low = d;
                high = d;
            }
        }
        if (high < low) low = high = 0; /* only with NaN parameters: let them through to the output */
        memmove(p, p + (low - from), (high - low + 1) * sizeof(double));
        for (int k = 0; k <= high - low; k++) p[k] /= sum;
        band.first[i] = i + low;
        band.count[i] = high - low + 1;
    }
    free(table);
    return band;
}

/* Do rows i and j hold the same weights at the same offsets? */
static int band_same(const Band *band, int i, int j) {
    return band->first[i] - i == band->first[j] - j && band->count[i] == band->count[j] &&
           !memcmp(band->p + (size_t)i * band->width, band->p + (size_t)j * band->width, band->count[i] * sizeof(double));
}

static void band_free(Band *band) {
    free(band->first), free(band->count), free(band->p);
}

/* Rows that need an entry in a gradient of P: in a run of equal rows, the first stands for all of them. */
static int band_next(int i, int run_from, int run_to) {
    return i == run_from && run_to > run_from ? run_to : i + 1;
}

/* Gradient of the two numbers of a kernel, given the gradient of its entries (same layout as band->p). */
static void band_backward(const Band *band, const double *grad_p, int run_from, int run_to, double *grad_a2, double *grad_a1) {
    for (int i = 0; i < band->n; i = band_next(i, run_from, run_to)) {
        const double *p = band->p + (size_t)i * band->width, *g = grad_p + (size_t)i * band->width;
        double inner = 0;
        for (int k = 0; k < band->count[i]; k++) inner += p[k] * g[k];
        for (int k = 0; k < band->count[i]; k++) {
            double d = band->first[i] + k - i, grad_score = p[k] * (g[k] - inner);
            *grad_a2 += grad_score * d * d;
            *grad_a1 += grad_score * d;
        }
    }
}

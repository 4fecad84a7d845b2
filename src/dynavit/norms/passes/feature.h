/* Numbers of channels of feature.py and ldfn.py: what a step's statistics make of the map and of
   the memory.

   Experts are numbered as below; `experts` lists the count of them that a norm has. statistics (2
   or 4, channels) are mean, variance and, where one expert is MINMAX, middle and spread. Numbers of
   experts (2 * count, channels) are centres and then log scales. The channels of a group, one after
   the other, share mixing weights; logits are (groups, count).

   Included after passes.h. */

enum { ZSCORE, MINMAX, RMS, MOST_EXPERTS };
#define WINDOW 8 /* steps that are remembered */

static void measure(long channels, long count, const int64_t *experts, const REAL *statistics,
                    double eps, REAL *to) {
    for (long e = 0; e < count; e++)
        for (long k = 0; k < channels; k++) {
            REAL mean = statistics[k], square = statistics[channels + k], centre = mean;
            if (experts[e] == MINMAX) {
                REAL spread = statistics[3 * channels + k];
                centre = statistics[2 * channels + k];
                square = spread * spread;
            } else if (experts[e] == RMS) {
                centre = 0;
                square += mean * mean;
            }
            to[e * channels + k] = centre;
            to[(count + e) * channels + k] = log(square + eps) / 2;
        }
}

/* Softmax of each group's logits; equal parts of one expert without logits. */
static void shares_of(long groups, long count, const REAL *logits, double *shares) {
    for (long g = 0; g < groups; g++) {
        double largest = -INFINITY, sum = 0;
        for (long e = 0; logits && e < count; e++) largest = fmax(largest, logits[g * count + e]);
        for (long e = 0; e < count; e++)
            sum += shares[g * count + e] = logits ? exp(logits[g * count + e] - largest) : 1;
        for (long e = 0; e < count; e++) shares[g * count + e] /= sum;
    }
}

static double mixed(long channels, long count, const REAL *numbers, const double *shares, long k) {
    double sum = 0;
    for (long e = 0; e < count; e++) sum += shares[e] * numbers[e * channels + k];
    return sum;
}

static double clipped(double value, double reach) {
    return value < -reach ? -reach : value > reach ? reach : value;
}

/* scale, shift, projected and inverse of projected_map, and for the gradient kept (4 + 2 * count,
   channels): slope, offset, the scale of the map at evaluation without its gain, the centre, and
   the population. Without one, NULL, the batch's own numbers stand for it. */
int ENTRY(feature_map)(int64_t channels, int64_t count, const int64_t *experts, int64_t groups,
                       double eps, double log_reach, double shift_reach, const REAL *statistics,
                       const REAL *population, const REAL *gain, const REAL *bias, const REAL *eta,
                       const REAL *centre_logit, const REAL *scale_logit, REAL *scale, REAL *shift,
                       REAL *projected, REAL *inverse, REAL *kept) {
    REAL *batch = malloc(2 * count * channels * sizeof(REAL));
    double *centre_shares = malloc(2 * groups * count * sizeof(double)),
           *scale_shares = centre_shares + groups * count;
    int done = batch && centre_shares;
    if (done) {
        measure(channels, count, experts, statistics, eps, batch);
        shares_of(groups, count, centre_logit, centre_shares);
        shares_of(groups, count, scale_logit, scale_shares);
    }
    for (long k = 0; done && k < channels; k++) {
        long g = k / (channels / groups) * count;
        const REAL *memory = population ? population : batch;
        double batch_centre = mixed(channels, count, batch, centre_shares + g, k);
        double batch_log = mixed(channels, count, batch + count * channels, scale_shares + g, k);
        double centre = mixed(channels, count, memory, centre_shares + g, k);
        double log_scale = mixed(channels, count, memory + count * channels, scale_shares + g, k);
        double mean = statistics[k], sigma = sqrt(statistics[channels + k] + eps),
               at_evaluation = exp(-log_scale);
        double own = exp(clipped(batch_log - log_scale, log_reach) - batch_log);
        double slope = own * sigma;
        double offset = clipped((batch_centre - centre) * at_evaluation, shift_reach) +
                        own * (mean - batch_centre);
        projected[k] = gain[k] * slope;
        scale[k] = gain[k] * slope + (eta ? *eta * sigma : 0);
        shift[k] = gain[k] * offset + bias[k] + (eta ? *eta * mean : 0);
        inverse[k] = 1 / sigma;
        kept[k] = slope, kept[channels + k] = offset, kept[2 * channels + k] = at_evaluation;
        kept[3 * channels + k] = centre;
    }
    if (done)
        memcpy(kept + 4 * channels, population ? population : batch,
               2 * count * channels * sizeof(REAL));
    free(batch);
    free(centre_shares);
    return !done;
}

/* Gradients of gain (channels), eta (1) and the logits from those of scale and shift; that of the
   bias is shift's. The mixture gets the gradient of the map at evaluation, gain * (x - centre) *
   exp(-log scale). Those of eta and the logits may be NULL. */
int ENTRY(feature_map_backward)(int64_t channels, int64_t count, int64_t groups, double eps,
                                const REAL *statistics, const REAL *gain, const REAL *centre_logit,
                                const REAL *scale_logit, const REAL *kept, const REAL *dscale,
                                const REAL *dshift, REAL *dgain, REAL *deta, REAL *dcentre_logit,
                                REAL *dscale_logit) {
    double *shares = malloc(4 * groups * count * sizeof(double)),
           *of_scale = shares + groups * count;
    double *sums = of_scale + groups * count, *scale_sums = sums + groups * count, along_eta = 0;
    if (!shares) return 1;
    const REAL *memory = kept + 4 * channels;
    memset(sums, 0, 2 * groups * count * sizeof(double));
    shares_of(groups, count, centre_logit, shares);
    shares_of(groups, count, scale_logit, of_scale);
    for (long k = 0; k < channels; k++) {
        double mean = statistics[k], sigma = sqrt(statistics[channels + k] + eps);
        double at_evaluation = gain[k] * kept[2 * channels + k], centre = kept[3 * channels + k];
        long g = k / (channels / groups) * count;
        dgain[k] = dscale[k] * kept[k] + dshift[k] * kept[channels + k];
        along_eta += dscale[k] * sigma + dshift[k] * mean;
        if (!dcentre_logit) continue;
        double of_centre = -dshift[k] * at_evaluation;
        double of_log = -at_evaluation * (dscale[k] * sigma + dshift[k] * (mean - centre));
        double log_scale = mixed(channels, count, memory + count * channels, of_scale + g, k);
        for (long e = 0; e < count; e++) {
            sums[g + e] += of_centre * shares[g + e] * (memory[e * channels + k] - centre);
            scale_sums[g + e] +=
                of_log * of_scale[g + e] * (memory[(count + e) * channels + k] - log_scale);
        }
    }
    if (deta) *deta = along_eta;
    for (long e = 0; dcentre_logit && e < groups * count; e++)
        dcentre_logit[e] = sums[e], dscale_logit[e] = scale_sums[e];
    free(shares);
    return 0;
}

/* ---- the memory ---- */

/* The middle of WINDOW rows of `width` numbers, which are sorted in place. */
static void median(long width, REAL *restrict rows, REAL *restrict middle) {
    static const int pairs[19][2] = {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {0, 2}, {1, 3}, {4, 6},
                                     {5, 7}, {1, 2}, {5, 6}, {0, 4}, {3, 7}, {1, 5}, {2, 6},
                                     {1, 4}, {3, 6}, {2, 4}, {3, 5}, {3, 4}};
    for (int pair = 0; pair < 19; pair++) {
        REAL *restrict low = rows + pairs[pair][0] * width, *restrict high =
                                                                rows + pairs[pair][1] * width;
        for (long k = 0; k < width; k++) {
            REAL a = low[k], b = high[k];
            low[k] = a < b ? a : b;
            high[k] = a < b ? b : a;
        }
    }
    for (long k = 0; k < width; k++) middle[k] = (rows[3 * width + k] + rows[4 * width + k]) / 2;
}

/* Moves population and window (WINDOW, 2 * count, channels) by the statistics of a step with two
   tokens or more, as `FeatureNorm.move` and `guard` do; `steps` counts those before. */
int ENTRY(feature_move)(int64_t channels, int64_t count, const int64_t *experts, double eps,
                        double alpha, double tau, double floor, int64_t steps,
                        const REAL *statistics, REAL *population, REAL *window) {
    long width = 2 * count * channels;
    REAL *new = malloc((3 + WINDOW) * width * sizeof(REAL)), *middle = new + width,
         *deviation = middle + width;
    REAL *sorted = deviation + width;
    if (!new) return 1;
    measure(channels, count, experts, statistics, eps, new);
    if (steps >= WINDOW) {
        memcpy(sorted, window, WINDOW * width * sizeof(REAL));
        median(width, sorted, middle);
        for (long row = 0; row < WINDOW; row++)
            for (long k = 0; k < width; k++)
                sorted[row * width + k] = fabs(window[row * width + k] - middle[k]);
        median(width, sorted, deviation);
        for (long k = 0; k < width; k++) {
            double unit = 1, sum = 0;
            if (k < width / 2) { /* a centre is measured by its scale */
                for (long row = 0; row < WINDOW; row++) sum += window[row * width + width / 2 + k];
                unit = exp(sum / WINDOW);
            }
            REAL reach = tau * fmax(deviation[k], floor * unit);
            REAL low = middle[k] - reach, high = middle[k] + reach;
            new[k] = new[k] < low ? low : new[k] > high ? high : new[k];
        }
    }
    for (long k = 0; k < width; k++)
        population[k] = steps ? new[k] + alpha *(population[k] - new[k]) : new[k];
    memmove(window, window + width, (WINDOW - 1) * width * sizeof(REAL));
    memcpy(window + (WINDOW - 1) * width, new, width * sizeof(REAL));
    free(new);
    return 0;
}

/* Moves the line (5, channels) of ldfn.py, mean and variance of x, those of LN(x) and their
   covariance, to statistics in the same order of which it takes this share: as `_join`. */
int ENTRY(line_move)(int64_t channels, double share, const REAL *of_x, const REAL *of_norm,
                     REAL *line) {
    double both = share * (1 - share);
    for (long k = 0; k < channels; k++) {
        REAL *old = line + k;
        double x = of_x[k] - (double)old[0], n = of_norm[k] - (double)old[2 * channels];
        const double apart[5] = {0, x * x, 0, n * n, x * n};
        for (int row = 0; row < 5; row++) {
            double new = row < 2 ? of_x[row * channels + k] : of_norm[(row - 2) * channels + k];
            old[row * channels] += share * (new - old[row * channels]) + both * apart[row];
        }
    }
    return 0;
}

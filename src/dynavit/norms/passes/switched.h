/* Switched of ../statistics/switched.py: a mixture of the moments of tokens, of samples and of the
   batch.

   w and w_var (3) are the shares of ln, in and bn. Kept for the gradient: moments of tokens
   (samples, tokens, 2), of samples' channels (2, samples, channels) and of the batch's (2,
   channels), mean and variance each.

   Included after passes.h. */

INLINE REAL root(REAL value) { return sizeof(REAL) == 4 ? sqrtf(value) : sqrt(value); }

/* Centres and variances of each sample's channels as far as they are the same for all its tokens:
   (2, samples, channels), to be freed; NULL if memory was short. */
static REAL *of_channels(const Size *size, double eps, const REAL *w, const REAL *w_var,
                         const REAL *of_samples, const REAL *of_batch) {
    long channels = size->channels, all = size->samples * channels;
    REAL *made = malloc(2 * all * sizeof(REAL));
    for (long at = 0; made && at < all; at++) {
        made[at] = w[1] * of_samples[at] + w[2] * of_batch[at % channels];
        made[all + at] =
            w_var[1] * of_samples[all + at] + w_var[2] * of_batch[channels + at % channels] + eps;
    }
    return made;
}

static REAL row_sum(const REAL *restrict row, long channels) {
    Lanes sums = {0};
    long whole = channels / LANES * LANES;
    REAL sum = 0;
    for (long k = 0; k < whole; k += LANES) sums += load(row + k);
    for (long k = whole; k < channels; k++) sum += row[k];
    return sum + sum_of_lanes(sums);
}

/* y and all that is kept are written. weight and bias (channels) may be NULL. */
int ENTRY(switched_forward)(int64_t samples, int64_t tokens, int64_t channels, int64_t threads,
                            double eps, const REAL *x, const REAL *weight, const REAL *bias,
                            const REAL *w, const REAL *w_var, REAL *of_tokens, REAL *of_samples,
                            REAL *of_batch, REAL *y) {
    Size size = {samples, tokens, channels, threads};
    long all = samples * channels;
    double *found = moments_of(&size, x, 0, 0, 0, 0);
    if (!found) return 1;
    for (long sample = 0; sample < samples; sample++)
        for (long k = 0; k < channels; k++) {
            of_samples[sample * channels + k] = found[2 * sample * channels + k];
            of_samples[all + sample * channels + k] =
                found[(2 * sample + 1) * channels + k] / tokens;
        }
    for (long sample = 1; sample < samples; sample++)
        join(sample * tokens, tokens, channels, found + 2 * sample * channels, found, 0);
    for (long k = 0; k < channels; k++) {
        of_batch[k] = found[k];
        of_batch[channels + k] = found[channels + k] / (samples * (double)tokens);
    }
    free(found);
    REAL *numbers = of_channels(&size, eps, w, w_var, of_samples, of_batch);
    if (!numbers) return 1;
    OMP(parallel for num_threads(threads_of(&size)) schedule(static))
    for (long at = 0; at < samples * chunks_of(&size); at++) {
        Chunk chunk = chunk_of(&size, at);
        const REAL *restrict centre = numbers + chunk.sample * channels, *restrict var =
                                                                             centre + all;
        for (long t = chunk.sample * tokens + chunk.start, end = t + chunk.count; t < end; t++) {
            const REAL *restrict from = x + t * channels;
            REAL *restrict to = y + t * channels;
            token_mean_and_var(from, channels, of_tokens + 2 * t);
            REAL level = w[0] * of_tokens[2 * t], spread = w_var[0] * of_tokens[2 * t + 1];
            for (long k = 0; k < channels; k++)
                to[k] = (from[k] - (level + centre[k])) / root(spread + var[k]);
            if (weight)
                for (long k = 0; k < channels; k++) to[k] = to[k] * weight[k] + bias[k];
        }
    }
    free(numbers);
    return 0;
}

/* The gradients of x, weight, bias (channels; NULL without them), w and w_var (3). With u = g r, p
   = (x - m) u: du = weight u and dv = weight p r^2, and their sums over the tokens and over the
   channels. */
int ENTRY(switched_backward)(int64_t samples, int64_t tokens, int64_t channels, int64_t threads,
                             double eps, const REAL *x, const REAL *weight, const REAL *w,
                             const REAL *w_var, const REAL *of_tokens, const REAL *of_samples,
                             const REAL *of_batch, const REAL *g, REAL *dx, REAL *dweight,
                             REAL *dbias, REAL *dw, REAL *dw_var) {
    enum { TOTAL, ALONG, OF_U, OF_V, SUMS };
    Size size = {samples, tokens, channels, threads};
    long in_sample = chunks_of(&size), chunks = samples * in_sample, rows = SUMS * channels,
         all = samples * channels, failed = 0;
    double *found = calloc(chunks * rows, sizeof(double)),
           *batch = calloc(4 * channels, sizeof(double));
    REAL *sums_of_tokens = malloc(2 * samples * tokens * sizeof(REAL)),
         *maps = malloc(2 * all * sizeof(REAL));
    REAL *numbers = of_channels(&size, eps, w, w_var, of_samples, of_batch), *slopes = maps + all;
    int done = found && batch && sums_of_tokens && maps && numbers;
    OMP(parallel num_threads(threads_of(&size)) reduction(| : failed))
    {
        REAL *restrict part = done ? malloc((rows + 2 * channels) * sizeof(REAL)) : NULL;
        failed = !part;
        OMP(for schedule(static))
        for (long at = 0; at < chunks; at++) {
            if (failed) continue;
            Chunk chunk = chunk_of(&size, at);
            const REAL *restrict centre = numbers + chunk.sample * channels, *restrict var =
                                                                                 centre + all;
            REAL *restrict du = part + rows, *restrict dv = du + channels;
            for (long begun = 0; begun < chunk.count; begun += PART) {
                long first = chunk.sample * tokens + chunk.start + begun;
                long count = chunk.count - begun < PART ? chunk.count - begun : PART;
                memset(part, 0, rows * sizeof(REAL));
                for (long t = first; t < first + count; t++) {
                    const REAL *restrict from = x + t * channels, *restrict of = g + t * channels;
                    REAL level = w[0] * of_tokens[2 * t], spread = w_var[0] * of_tokens[2 * t + 1];
                    for (long k = 0; k < channels; k++) {
                        REAL r = 1 / root(spread + var[k]), u = of[k] * r,
                             p = (from[k] - (level + centre[k])) * u;
                        part[TOTAL * channels + k] += of[k];
                        part[ALONG * channels + k] += p;
                        du[k] = u;
                        dv[k] = p * r * r;
                    }
                    if (weight)
                        for (long k = 0; k < channels; k++) du[k] *= weight[k], dv[k] *= weight[k];
                    for (long k = 0; k < channels; k++) {
                        part[OF_U * channels + k] += du[k];
                        part[OF_V * channels + k] += dv[k];
                    }
                    sums_of_tokens[2 * t] = row_sum(du, channels);
                    sums_of_tokens[2 * t + 1] = row_sum(dv, channels);
                }
                for (long k = 0; k < rows; k++) found[at * rows + k] += part[k];
            }
        }
        free(part);
    }
    done = done && !failed;
    double to_w[3] = {0}, to_var[3] = {0};
    for (long at = 0; done && at < chunks; at++) {
        long sample = at / in_sample;
        double *own = found + at * rows, *first = found + sample * in_sample * rows;
        for (long k = 0; own != first && k < rows; k++) first[k] += own[k];
    }
    for (long sample = 0; done && sample < samples; sample++) {
        const double *own = found + sample * in_sample * rows;
        for (long k = 0; k < rows; k++) batch[k] += own[k];
        for (long k = 0; k < channels; k++) {
            long at = sample * channels + k;
            double u = own[OF_U * channels + k], v = own[OF_V * channels + k];
            to_w[1] += u * of_samples[at], to_w[2] += u * of_batch[k];
            to_var[1] += v * of_samples[all + at], to_var[2] += v * of_batch[channels + k];
        }
    }
    for (long t = 0; done && t < samples * tokens; t++) {
        to_w[0] += (double)sums_of_tokens[2 * t] * of_tokens[2 * t];
        to_var[0] += (double)sums_of_tokens[2 * t + 1] * of_tokens[2 * t + 1];
    }
    for (long at = 0; done && at < all; at++) {
        long k = at % channels;
        const double *own = found + at / channels * in_sample * rows;
        double of_bn = w_var[2] * batch[OF_V * channels + k] / (samples * (double)tokens);
        slopes[at] = w_var[1] * own[OF_V * channels + k] / tokens + of_bn;
        maps[at] = w[1] * own[OF_U * channels + k] / tokens +
                   w[2] * batch[OF_U * channels + k] / (samples * (double)tokens) +
                   of_bn * (of_samples[at] - (double)of_batch[k]);
    }
    for (int source = 0; done && source < 3; source++)
        dw[source] = -to_w[source], dw_var[source] = -to_var[source] / 2;
    for (long k = 0; done && k < channels; k++) {
        if (dbias) dbias[k] = batch[TOTAL * channels + k];
        if (dweight) dweight[k] = batch[ALONG * channels + k];
    }
    OMP(parallel for num_threads(threads_of(&size)) schedule(static))
    for (long at = 0; at < (done ? chunks : 0); at++) {
        Chunk chunk = chunk_of(&size, at);
        long start = chunk.sample * channels;
        const REAL *restrict var = numbers + all + start, *restrict mean = of_samples + start;
        const REAL *restrict level = maps + start, *restrict slope = slopes + start;
        for (long t = chunk.sample * tokens + chunk.start, end = t + chunk.count; t < end; t++) {
            const REAL *restrict from = x + t * channels, *restrict of = g + t * channels;
            REAL *restrict to = dx + t * channels, mean_t = of_tokens[2 * t],
                           spread = w_var[0] * of_tokens[2 * t + 1];
            REAL lost = w[0] * sums_of_tokens[2 * t] / channels,
                 bent = w_var[0] * sums_of_tokens[2 * t + 1] / channels;
            for (long k = 0; k < channels; k++) to[k] = of[k] / root(spread + var[k]);
            if (weight)
                for (long k = 0; k < channels; k++) to[k] *= weight[k];
            for (long k = 0; k < channels; k++)
                to[k] -=
                    lost + (from[k] - mean_t) * bent + level[k] + (from[k] - mean[k]) * slope[k];
        }
    }
    free(found);
    free(batch);
    free(sums_of_tokens);
    free(maps);
    free(numbers);
    return !done;
}

/* Norms with statistics of channels, forward and backward, over tokens (samples, tokens, channels),
   for one number type.

   The same numbers as ../statistics/standardised.py and ../statistics/projected_map.py, which are
   their oracles and fallbacks. Plain operations read and write all tokens once for every small
   step. Here a token is read while it is at hand, sums run over few tokens before they are added to
   doubles, and the numbers of channels stay in C.

   Each norm is a map per channel, and its gradient another, with or without a LayerNorm beside:

       y  = scale * (x - mean) + shift                 (+ norm_weight * LN(x))
       dx = gain * g - slope * (x - mean) - level      (+ r (e - mean(e) - LN(x) mean(e LN(x))),  e
   = norm_weight * g)

   `norm_weight` is NULL where there is no LayerNorm; `token_moments` (samples, tokens, 2) are the
   mean and the inverse deviation r of each token.

   Included by a file that defines REAL and ENTRY. Entries are called through ctypes and return 0,
   or 1 if memory was short. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define PRAGMA(...) _Pragma(#__VA_ARGS__)
#if defined(_OPENMP)
#define OMP(...) PRAGMA(omp __VA_ARGS__)
#else
#define OMP(...) /* the loops run on one thread */
#endif

#define PART 64   /* tokens that are summed in REAL */
#define CHUNK 512 /* tokens of a sample that one thread takes at a time */
#define FEW 32768 /* numbers that are not worth a second thread */

typedef REAL Lanes __attribute__((vector_size(64)));
typedef REAL Half __attribute__((vector_size(32)));
typedef REAL Quarter __attribute__((vector_size(16)));
enum { LANES = 64 / sizeof(REAL) };

typedef struct {
    int64_t samples, tokens, channels, threads;
} Size;

typedef struct {
    long sample, start, count;
} Chunk;

static long chunks_of(const Size *size) { return (size->tokens + CHUNK - 1) / CHUNK; }

static Chunk chunk_of(const Size *size, long at) {
    long in_sample = chunks_of(size), start = at % in_sample * CHUNK, left = size->tokens - start;
    return (Chunk){at / in_sample, start, left < CHUNK ? left : CHUNK};
}

INLINE int threads_of(const Size *size) {
    int64_t numbers = size->samples * size->tokens * size->channels;
    return numbers < FEW ? 1 : (int)size->threads;
}

/* ---- sums over the channels of one token ---- */

INLINE Lanes load(const REAL *from) {
    Lanes lanes;
    memcpy(&lanes, from, sizeof lanes);
    return lanes;
}

INLINE REAL sum_of_lanes(Lanes lanes) {
    Half halves[2];
    Quarter quarters[2];
    memcpy(halves, &lanes, sizeof lanes);
    halves[0] += halves[1];
    memcpy(quarters, halves, sizeof quarters);
    quarters[0] += quarters[1];
    REAL sum = quarters[0][0] + quarters[0][1];
    for (int k = 2; k < LANES / 4; k++) sum += quarters[0][k];
    return sum;
}

static void token_mean_and_var(const REAL *restrict x, long channels, REAL *restrict moments) {
    Lanes sums = {0}, squares = {0};
    long whole = channels / LANES * LANES;
    /* less a number of the token: a large mean would be lost in the rounding */
    REAL first = x[0], sum = 0, square = 0;
    for (long k = 0; k < whole; k += LANES) sums += load(x + k) - first;
    for (long k = whole; k < channels; k++) sum += x[k] - first;
    REAL mean = first + (sum + sum_of_lanes(sums)) / channels;
    for (long k = 0; k < whole; k += LANES) {
        Lanes centred = load(x + k) - mean;
        squares += centred * centred;
    }
    for (long k = whole; k < channels; k++) square += (x[k] - mean) * (x[k] - mean);
    moments[0] = mean;
    moments[1] = (square + sum_of_lanes(squares)) / channels;
}

/* Mean, and 1 / sqrt(variance + eps). */
static void token_moments_of(const REAL *x, long channels, double eps, REAL *moments) {
    token_mean_and_var(x, channels, moments);
    moments[1] = 1 / sqrt(moments[1] + eps);
}

/* ---- moments of channels ---- */

enum { MEAN, SQUARES, LOW, HIGH, NORM_MEAN, NORM_SQUARES, PRODUCTS };

/* Joins (mean, squares) of `added` values to those of `count`; with a second variable also its own
 * and the products. */
static void join(double count, double added, long channels, const double *restrict other,
                 double *restrict into, int line) {
    double share = added / (count + added), both = count * share;
    for (long k = 0; k < channels; k++) {
        const double *o = other + k;
        double *i = into + k;
        double x = o[MEAN * channels] - i[MEAN * channels];
        i[MEAN * channels] += share * x;
        i[SQUARES * channels] += o[SQUARES * channels] + both * x * x;
        if (!line) continue;
        double n = o[NORM_MEAN * channels] - i[NORM_MEAN * channels];
        i[NORM_MEAN * channels] += share * n;
        i[NORM_SQUARES * channels] += o[NORM_SQUARES * channels] + both * n * n;
        i[PRODUCTS * channels] += o[PRODUCTS * channels] + both * x * n;
    }
}

static void join_ranges(long channels, const double *restrict other, double *restrict into) {
    for (long k = 0; k < channels; k++) {
        if (other[LOW * channels + k] < into[LOW * channels + k])
            into[LOW * channels + k] = other[LOW * channels + k];
        if (other[HIGH * channels + k] > into[HIGH * channels + k])
            into[HIGH * channels + k] = other[HIGH * channels + k];
    }
}

/* Of up to PART tokens, to `rows` (2, 4 or 7, channels). `work` holds 5 * channels numbers. */
static void part_moments(const REAL *restrict x, long tokens, long channels, int ranges,
                         double *restrict rows, REAL *restrict work) {
    REAL *restrict mean = work, *restrict squares = work + channels,
                   *restrict rest = work + 2 * channels;
    REAL *restrict low = work + 3 * channels, *restrict high = work + 4 * channels;
    memset(work, 0, 3 * channels * sizeof(REAL));
    for (long t = 1; t < tokens; t++)
        for (long k = 0; k < channels; k++) mean[k] += x[t * channels + k] - x[k];
    for (long k = 0; k < channels; k++) mean[k] = x[k] + mean[k] / tokens;
    for (long t = 0; t < tokens; t++)
        for (long k = 0; k < channels; k++) {
            REAL centred = x[t * channels + k] - mean[k];
            rest[k] += centred;
            squares[k] += centred * centred;
        }
    for (long k = 0; k < channels; k++) {
        /* The mean was rounded; what is left of it is known better now. */
        double left = rest[k] / (double)tokens;
        rows[MEAN * channels + k] = mean[k] + left;
        rows[SQUARES * channels + k] = squares[k] - left * left * tokens;
    }
    if (!ranges) return;
    memcpy(low, x, channels * sizeof(REAL));
    memcpy(high, x, channels * sizeof(REAL));
    for (long t = 1; t < tokens; t++)
        for (long k = 0; k < channels; k++) {
            REAL value = x[t * channels + k];
            low[k] = value < low[k] ? value : low[k];
            high[k] = value > high[k] ? value : high[k];
        }
    for (long k = 0; k < channels; k++)
        rows[LOW * channels + k] = low[k], rows[HIGH * channels + k] = high[k];
}

/* The same of LN(x) without gain and bias, and its products with x, after `part_moments`. */
static void part_line(const REAL *restrict x, long tokens, long channels, double eps,
                      double *restrict rows, REAL *restrict work) {
    REAL of_tokens[2 * PART];
    REAL *restrict mean = work, *restrict norm_mean = work + channels,
                   *restrict norm_squares = work + 2 * channels;
    REAL *restrict products = work + 3 * channels;
    memset(norm_mean, 0, 3 * channels * sizeof(REAL));
    for (long t = 0; t < tokens; t++) {
        token_moments_of(x + t * channels, channels, eps, of_tokens + 2 * t);
        REAL level = of_tokens[2 * t], inverse = of_tokens[2 * t + 1];
        for (long k = 0; k < channels; k++) norm_mean[k] += (x[t * channels + k] - level) * inverse;
    }
    for (long k = 0; k < channels; k++) norm_mean[k] /= tokens, mean[k] = rows[MEAN * channels + k];
    for (long t = 0; t < tokens; t++) {
        REAL level = of_tokens[2 * t], inverse = of_tokens[2 * t + 1];
        for (long k = 0; k < channels; k++) {
            REAL value = x[t * channels + k], normed = (value - level) * inverse - norm_mean[k];
            norm_squares[k] += normed * normed;
            products[k] += normed * (value - mean[k]);
        }
    }
    for (long k = 0; k < channels; k++) {
        rows[NORM_MEAN * channels + k] = norm_mean[k];
        rows[NORM_SQUARES * channels + k] = norm_squares[k];
        rows[PRODUCTS * channels + k] = products[k];
    }
}

static void chunk_moments(const REAL *x, const Chunk *chunk, long channels, int ranges, int line,
                          double eps, double *rows, double *part, REAL *work) {
    for (long done = 0; done < chunk->count; done += PART) {
        long count = chunk->count - done < PART ? chunk->count - done : PART;
        const REAL *tokens = x + done * channels;
        double *into = done ? part : rows;
        part_moments(tokens, count, channels, ranges, into, work);
        if (line) part_line(tokens, count, channels, eps, into, work);
        if (!done) continue;
        join(done, count, channels, part, rows, line);
        if (ranges) join_ranges(channels, part, rows);
    }
}

/* The rows above of every sample, or (joint) of all together, (samples or 1, count, channels) at
   the front of the result, which the caller frees; NULL if memory was short. */
static double *moments_of(const Size *size, const REAL *x, int joint, int ranges, int line,
                          double eps) {
    long channels = size->channels, tokens = size->tokens, in_sample = chunks_of(size);
    long chunks = size->samples * in_sample,
         count = line     ? 7
                 : ranges ? 4
                          : 2,
         rows = count * channels, failed = 0;
    double *found = malloc(chunks * rows * sizeof(double));
    if (!found) return NULL;
    OMP(parallel num_threads(threads_of(size)) reduction(| : failed))
    {
        double *part = malloc(rows * sizeof(double));
        REAL *work = malloc(5 * channels * sizeof(REAL));
        failed = !part || !work;
        OMP(for schedule(static))
        for (long at = 0; at < chunks; at++) {
            if (failed) continue;
            Chunk chunk = chunk_of(size, at);
            const REAL *from = x + (chunk.sample * tokens + chunk.start) * channels;
            chunk_moments(from, &chunk, channels, ranges, line, eps, found + at * rows, part, work);
        }
        free(part);
        free(work);
    }
    if (failed) {
        free(found);
        return NULL;
    }
    for (long sample = 0; sample < size->samples; sample++) {
        double *own = found + sample * in_sample * rows, *to = found + sample * rows;
        for (long at = 1; at < in_sample; at++) {
            long before = at * CHUNK, added = tokens - before < CHUNK ? tokens - before : CHUNK;
            join(before, added, channels, own + at * rows, own, line);
            if (ranges) join_ranges(channels, own + at * rows, own);
        }
        if (to != own) memmove(to, own, rows * sizeof(double));
    }
    for (long sample = 1; joint && sample < size->samples; sample++) {
        double *other = found + sample * rows;
        join(sample * tokens, tokens, channels, other, found, line);
        /* Ranges are those of a sample: their ends are summed. */
        for (long k = 0; ranges && k < 2 * channels; k++)
            found[LOW * channels + k] += other[LOW * channels + k];
    }
    return found;
}

/* Rows (2, 4, 5 or 7, channels) of all tokens: mean and biased variance; with `ranges` the middle
   of the smallest and the largest value of a sample, and their distance times `unit`, means over
   samples; with `line` mean and variance of LN(x) without gain and bias, and its covariance with x.
 */
int ENTRY(batch_moments)(int64_t samples, int64_t tokens, int64_t channels, int64_t threads,
                         const REAL *x, int64_t ranges, double unit, int64_t line, double eps,
                         REAL *rows) {
    Size size = {samples, tokens, channels, threads};
    if (!ranges) size = (Size){1, samples * tokens, channels, threads};
    double *found = moments_of(&size, x, 1, ranges, line, eps), count = samples * (double)tokens;
    if (!found) return 1;
    REAL *of_line = rows + (ranges ? 4 : 2) * channels;
    for (long k = 0; k < channels; k++) {
        const double *own = found + k;
        rows[k] = own[MEAN * channels];
        rows[channels + k] = own[SQUARES * channels] / count;
        if (ranges) {
            rows[2 * channels + k] = (own[HIGH * channels] + own[LOW * channels]) / (2 * samples);
            rows[3 * channels + k] =
                (own[HIGH * channels] - own[LOW * channels]) * (unit / samples);
        }
        if (line) {
            of_line[k] = own[NORM_MEAN * channels];
            of_line[channels + k] = own[NORM_SQUARES * channels] / count;
            of_line[2 * channels + k] = own[PRODUCTS * channels] / count;
        }
    }
    free(found);
    return 0;
}

/* ---- the map and its gradient, coefficients being given: (channels), or (samples, channels) with
 * `step` = channels ---- */

static void map(const Size *size, const REAL *x, long step, const REAL *mean, const REAL *scale,
                const REAL *shift, const REAL *norm_weight, double eps, REAL *token_moments,
                REAL *y) {
    long tokens = size->tokens, channels = size->channels;
    OMP(parallel for num_threads(threads_of(size)) schedule(static))
    for (long at = 0; at < size->samples * chunks_of(size); at++) {
        Chunk chunk = chunk_of(size, at);
        const REAL *restrict m = mean + chunk.sample * step, *restrict a =
                                                                 scale + chunk.sample * step;
        const REAL *restrict b = shift + chunk.sample * step, *restrict w = norm_weight;
        for (long t = chunk.sample * tokens + chunk.start, end = t + chunk.count; t < end; t++) {
            const REAL *restrict from = x + t * channels;
            REAL *restrict to = y + t * channels;
            if (!w) {
                for (long k = 0; k < channels; k++) to[k] = (from[k] - m[k]) * a[k] + b[k];
                continue;
            }
            REAL *moments = token_moments + 2 * t;
            token_moments_of(from, channels, eps, moments);
            REAL level = moments[0], inverse = moments[1];
            for (long k = 0; k < channels; k++)
                to[k] = (from[k] - m[k]) * a[k] + b[k] + (from[k] - level) * inverse * w[k];
        }
    }
}

/* Sums over tokens of g, of g (x - mean) and, if there are token_moments, of g LN(x): (samples or
   1, 2 or 3, channels) at the front of the result, which the caller frees; NULL if memory was
   short. */
static double *sums_of(const Size *size, const REAL *x, const REAL *g, long step, const REAL *mean,
                       const REAL *token_moments) {
    long tokens = size->tokens, channels = size->channels, in_sample = chunks_of(size),
         chunks = size->samples * in_sample;
    long rows = (token_moments ? 3 : 2) * channels, failed = 0;
    double *found = calloc(chunks * rows, sizeof(double));
    if (!found) return NULL;
    OMP(parallel num_threads(threads_of(size)) reduction(| : failed))
    {
        REAL *restrict part = malloc(3 * channels * sizeof(REAL));
        failed = !part;
        OMP(for schedule(static))
        for (long at = 0; at < chunks; at++) {
            if (failed) continue;
            Chunk chunk = chunk_of(size, at);
            const REAL *restrict m = mean + chunk.sample * step;
            REAL *restrict total = part, *restrict along = part + channels,
                           *restrict normed = part + 2 * channels;
            for (long done = 0; done < chunk.count; done += PART) {
                long first = chunk.sample * tokens + chunk.start + done;
                long count = chunk.count - done < PART ? chunk.count - done : PART;
                memset(part, 0, rows * sizeof(REAL));
                for (long t = first; t < first + count; t++) {
                    const REAL *restrict from = x + t * channels, *restrict of = g + t * channels;
                    if (!token_moments) {
                        for (long k = 0; k < channels; k++)
                            total[k] += of[k], along[k] += of[k] * (from[k] - m[k]);
                        continue;
                    }
                    REAL level = token_moments[2 * t], inverse = token_moments[2 * t + 1];
                    for (long k = 0; k < channels; k++) {
                        total[k] += of[k];
                        along[k] += of[k] * (from[k] - m[k]);
                        normed[k] += of[k] * ((from[k] - level) * inverse);
                    }
                }
                for (long k = 0; k < rows; k++) found[at * rows + k] += part[k];
            }
        }
        free(part);
    }
    if (failed) {
        free(found);
        return NULL;
    }
    for (long sample = 0; sample < size->samples; sample++)
        for (long at = 0; at < in_sample; at++) {
            const double *own = found + (sample * in_sample + at) * rows;
            double *to = found + sample * rows;
            if (to == own) continue;
            for (long k = 0; k < rows; k++) to[k] = (at ? to[k] : 0) + own[k];
        }
    return found;
}

/* Means over the channels of e = w g and of e LN(x). */
static void norm_means(const REAL *restrict x, const REAL *restrict g, const REAL *restrict w,
                       long channels, REAL level, REAL inverse, REAL *restrict mean_e,
                       REAL *restrict mean_along) {
    Lanes sums = {0}, products = {0};
    long whole = channels / LANES * LANES;
    REAL sum = 0, product = 0;
    for (long k = 0; k < whole; k += LANES) {
        Lanes e = load(g + k) * load(w + k);
        sums += e;
        products += e * (load(x + k) - level);
    }
    for (long k = whole; k < channels; k++)
        sum += w[k] * g[k], product += w[k] * g[k] * (x[k] - level);
    *mean_e = (sum + sum_of_lanes(sums)) / channels;
    *mean_along = (product + sum_of_lanes(products)) * inverse / channels;
}

static void gradient(const Size *size, const REAL *x, const REAL *g, long step, const REAL *mean,
                     const REAL *gain, const REAL *slope, const REAL *level,
                     const REAL *norm_weight, const REAL *token_moments, REAL *dx) {
    long tokens = size->tokens, channels = size->channels;
    OMP(parallel for num_threads(threads_of(size)) schedule(static))
    for (long at = 0; at < size->samples * chunks_of(size); at++) {
        Chunk chunk = chunk_of(size, at);
        const REAL *restrict m = mean + chunk.sample * step, *restrict a =
                                                                 gain + chunk.sample * step;
        const REAL *restrict s = slope + chunk.sample * step, *restrict l =
                                                                  level + chunk.sample * step;
        const REAL *restrict w = norm_weight;
        for (long t = chunk.sample * tokens + chunk.start, end = t + chunk.count; t < end; t++) {
            const REAL *restrict from = x + t * channels, *restrict of = g + t * channels;
            REAL *restrict to = dx + t * channels;
            if (!w) {
                for (long k = 0; k < channels; k++)
                    to[k] = a[k] * of[k] - s[k] * (from[k] - m[k]) - l[k];
                continue;
            }
            REAL mean_t = token_moments[2 * t], inverse = token_moments[2 * t + 1], mean_e,
                 mean_along;
            norm_means(from, of, w, channels, mean_t, inverse, &mean_e, &mean_along);
            REAL lost = inverse * mean_e, bent = inverse * inverse * mean_along;
            for (long k = 0; k < channels; k++)
                to[k] = (a[k] + inverse * w[k]) * of[k] - s[k] * (from[k] - m[k]) - l[k] - lost -
                        bent * (from[k] - mean_t);
        }
    }
}

/* ---- Standardised of standardised.py ---- */

/* What shares moments: `groups` of a sample's channels, or with 0 groups a channel of all samples,
 * taken as one. */
static Size shared_size(int64_t samples, int64_t tokens, int64_t channels, int64_t threads,
                        int64_t groups) {
    if (groups) return (Size){samples, tokens, channels, threads};
    return (Size){1, samples * tokens, channels, threads};
}

/* Means over a group take the place of each of its numbers. */
static void pool(long channels, long groups, double *numbers) {
    long width = groups ? channels / groups : 1;
    for (long start = 0; width > 1 && start < channels; start += width) {
        double sum = 0;
        for (long k = start; k < start + width; k++) sum += numbers[k];
        for (long k = start; k < start + width; k++) numbers[k] = sum / width;
    }
}

static double inverse_of(double var, double correction, double eps) {
    return 1 / sqrt(correction * var + eps);
}

/* moments (2, samples or 1, channels), y and with norm_weight token_moments are written. weight,
   bias (channels) and eta (1) may be NULL. */
int ENTRY(standardised_forward)(int64_t samples, int64_t tokens, int64_t channels, int64_t threads,
                                int64_t groups, double eps, double correction, double norm_eps,
                                const REAL *x, const REAL *weight, const REAL *bias,
                                const REAL *eta, const REAL *norm_weight, REAL *moments,
                                REAL *token_moments, REAL *y) {
    Size size = shared_size(samples, tokens, channels, threads, groups);
    long all = size.samples * channels;
    REAL *scale = malloc(2 * all * sizeof(REAL)), *shift = scale + all, *mean = moments,
         *var = moments + all;
    double *found = moments_of(&size, x, 0, 0, 0, 0), *own = malloc(channels * sizeof(double));
    int done = scale && found && own;
    for (long sample = 0; done && sample < size.samples; sample++) {
        double *means = found + 2 * sample * channels, *vars = means + channels;
        long at = sample * channels;
        memcpy(own, means, channels * sizeof(double));
        pool(channels, groups, means);
        /* Of a group: the variance within its channels, and that between their means. */
        for (long k = 0; k < channels; k++)
            vars[k] = vars[k] / size.tokens + (own[k] - means[k]) * (own[k] - means[k]);
        pool(channels, groups, vars);
        for (long k = 0; k < channels; k++) {
            mean[at + k] = means[k];
            var[at + k] = vars[k];
            double a = inverse_of(var[at + k], correction, eps) * (weight ? weight[k] : 1),
                   b = bias ? bias[k] : 0;
            scale[at + k] = a + (eta ? *eta : 0);
            shift[at + k] = b + (eta ? *eta * means[k] : 0);
        }
    }
    if (done) map(&size, x, channels, mean, scale, shift, norm_weight, norm_eps, token_moments, y);
    free(scale);
    free(found);
    free(own);
    return !done;
}

/* All gradients are written: of x, of weight, bias, norm_weight (channels) and eta (1); those of
 * parameters may be NULL. */
int ENTRY(standardised_backward)(int64_t samples, int64_t tokens, int64_t channels, int64_t threads,
                                 int64_t groups, double eps, double correction, const REAL *x,
                                 const REAL *weight, const REAL *eta, const REAL *norm_weight,
                                 const REAL *moments, const REAL *token_moments, const REAL *g,
                                 REAL *dx, REAL *dweight, REAL *dbias, REAL *deta, REAL *dnorm) {
    Size size = shared_size(samples, tokens, channels, threads, groups);
    long all = size.samples * channels, rows = token_moments ? 3 : 2;
    const REAL *mean = moments, *var = moments + all;
    REAL *gain = malloc(3 * all * sizeof(REAL)), *slope = gain + all, *level = slope + all;
    double *found = sums_of(&size, x, g, channels, mean, token_moments),
           *of = calloc(4 * channels, sizeof(double)), along_eta = 0;
    int done = gain && found && of;
    for (long sample = 0; done && sample < size.samples; sample++) {
        double *total = found + sample * rows * channels, *along = total + channels,
               *normed = along + channels;
        long at = sample * channels;
        for (long k = 0; k < channels; k++) {
            of[k] += along[k] * inverse_of(var[at + k], correction, eps);
            of[channels + k] += total[k];
            if (token_moments) of[2 * channels + k] += normed[k];
            along_eta += along[k] + total[k] * mean[at + k];
            total[k] *= weight ? weight[k] : 1;
            along[k] *= weight ? weight[k] : 1;
        }
        pool(channels, groups, total);
        pool(channels, groups, along);
        for (long k = 0; k < channels; k++) {
            double inverse = inverse_of(var[at + k], correction, eps);
            gain[at + k] = inverse * (weight ? weight[k] : 1) + (eta ? *eta : 0);
            level[at + k] = total[k] * inverse / size.tokens;
            slope[at + k] = along[k] * inverse * inverse * inverse * correction / size.tokens;
        }
    }
    for (long k = 0; done && k < channels; k++) {
        if (dweight) dweight[k] = of[k];
        if (dbias) dbias[k] = of[channels + k];
        if (dnorm) dnorm[k] = of[2 * channels + k];
    }
    if (done && deta) *deta = along_eta;
    if (done)
        gradient(&size, x, g, channels, mean, gain, slope, level, norm_weight, token_moments, dx);
    free(gain);
    free(found);
    free(of);
    return !done;
}

/* ---- projected_map.py ---- */

/* y = scale * (x - mean) * inverse + shift, all (channels), and LayerNorm's. */
int ENTRY(projected_forward)(int64_t samples, int64_t tokens, int64_t channels, int64_t threads,
                             double norm_eps, const REAL *x, const REAL *mean, const REAL *inverse,
                             const REAL *scale, const REAL *shift, const REAL *norm_weight,
                             REAL *token_moments, REAL *y) {
    Size size = shared_size(samples, tokens, channels, threads, 0);
    REAL *slope = malloc(channels * sizeof(REAL));
    if (!slope) return 1;
    for (long k = 0; k < channels; k++) slope[k] = scale[k] * inverse[k];
    map(&size, x, 0, mean, slope, shift, norm_weight, norm_eps, token_moments, y);
    free(slope);
    return 0;
}

/* The gradients of x, and of scale, shift and norm_weight (channels). */
int ENTRY(projected_backward)(int64_t samples, int64_t tokens, int64_t channels, int64_t threads,
                              const REAL *x, const REAL *mean, const REAL *inverse,
                              const REAL *scale, const REAL *projected, const REAL *norm_weight,
                              const REAL *token_moments, const REAL *g, REAL *dx, REAL *dscale,
                              REAL *dshift, REAL *dnorm) {
    Size size = shared_size(samples, tokens, channels, threads, 0);
    REAL *gain = malloc(3 * channels * sizeof(REAL)), *slope = gain + channels,
         *level = slope + channels;
    double *found = sums_of(&size, x, g, 0, mean, token_moments);
    int done = gain && found;
    for (long k = 0; done && k < channels; k++) {
        double total = found[k], along = found[channels + k] * inverse[k];
        double share = projected[k] * (double)inverse[k] / size.tokens;
        dshift[k] = total;
        dscale[k] = along;
        if (dnorm) dnorm[k] = found[2 * channels + k];
        gain[k] = scale[k] * inverse[k];
        level[k] = share * total;
        slope[k] = share * along * inverse[k];
    }
    if (done) gradient(&size, x, g, 0, mean, gain, slope, level, norm_weight, token_moments, dx);
    free(gain);
    free(found);
    return !done;
}

/* ---- running.py: moments (2, channels) of `count` tokens, at least one ---- */

/* Moves the running moments towards them. Returns 2, and moves nothing, if one is not finite. */
int ENTRY(move_running)(int64_t channels, double count, double momentum, const REAL *moments,
                        REAL *running_mean, REAL *running_var) {
    for (long k = 0; k < 2 * channels; k++)
        if (!isfinite(moments[k])) return 2;
    double unbiased = count > 1 ? count / (count - 1) : 0;
    for (long k = 0; k < channels; k++) {
        running_mean[k] += momentum * ((double)moments[k] - running_mean[k]);
        if (unbiased)
            running_var[k] += momentum * (unbiased * moments[channels + k] - running_var[k]);
    }
    return 0;
}

/* Joins them to the moments `pending` (2, channels) of `pending_weight` (2) tokens. */
int ENTRY(merge_running)(int64_t channels, double count, const REAL *moments, REAL *pending,
                         REAL *pending_weight) {
    double share = count / (pending_weight[0] + count);
    for (long k = 0; k < channels; k++) {
        double apart = (double)moments[k] - pending[k], own = pending[channels + k];
        pending[k] += share * apart;
        pending[channels + k] =
            own + share * (moments[channels + k] - own) + share * (1 - share) * apart * apart;
    }
    pending_weight[0] += count;
    pending_weight[1] += count;
    return 0;
}

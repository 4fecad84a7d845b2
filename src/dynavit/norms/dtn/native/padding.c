/* Masks whose real tokens fill the top-left corner of the grid: images, or sequences, of different
   sizes in one batch. */
#include <stdint.h>
#include <string.h>

/* Numbers in front that are not 0. */
static int64_t ones_in_front(const uint8_t *mask, int64_t count) {
    const uint8_t *zero = memchr(mask, 0, count);
    return zero ? zero - mask : count;
}

static int any(const uint8_t *mask, int64_t count) { return memchr(mask, 1, count) != NULL; }

/* From a mask (samples, prefix + rows * cols) of bytes 0 and 1 to the real rows and columns of each
   sample (samples, 2). Returns 0 if a mask is of another form: its prefix is real, and so is a
   rectangle in the corner. */
int dtn_extents(int64_t samples, int64_t prefix, int64_t rows, int64_t cols, const uint8_t *mask,
                int64_t *extents) {
    for (int64_t sample = 0; sample < samples; sample++, extents += 2) {
        if (ones_in_front(mask, prefix) < prefix) return 0;
        mask += prefix;
        int64_t width = ones_in_front(mask, cols), height = 0;
        for (; width && height < rows; height++, mask += cols) {
            int64_t here = ones_in_front(mask, cols);
            if (here == 0) break;
            if (here != width || any(mask + here, cols - here)) return 0;
        }
        int64_t left = (rows - height) * cols;
        if (any(mask, left)) return 0;
        mask += left;
        extents[0] = height, extents[1] = width;
    }
    return 1;
}

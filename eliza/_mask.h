/* Masking a row without gaps: a fill of the row that spares some of its cells. */
#ifndef ELIZA_MASK_H
#define ELIZA_MASK_H

#include <stdint.h>
#include <string.h>

#include "_simd.h"

/* How many cells are saved at a time: as many as there are registers for. */
enum { ELIZA_KEPT = 8 };

/* `size` bytes, cell by cell. */
ELIZA_INLINE void fill_short(char *to, int64_t size, uint32_t cells) {
    for (; size >= 4; size -= 4, to += 4) memcpy(to, &cells, 4);
    if (size) memcpy(to, &cells, 2);
}

#if defined(__GNUC__)

/* `size` bytes with a float32, or with a half float that `cells` holds twice. One store
   at the start, one that ends where the bytes do, and aligned ones between: they may
   cover cells twice, but no loop goes over single cells, and no store crosses a cache
   line, which takes up to 1.4 times as long. */
#define ELIZA_FILL(name, vector)                                             \
    ELIZA_INLINE void name(char *to, int64_t size, uint32_t cells) {         \
        enum { WIDTH = sizeof(vector) };                                     \
        vector v = (vector){0} + (int32_t)cells;                             \
        if (size < WIDTH) {                                                  \
            fill_short(to, size, cells);                                     \
            return;                                                          \
        }                                                                    \
        char *last = to + size - WIDTH;                                      \
        memcpy(to, &v, WIDTH);                                               \
        to += WIDTH - (int64_t)((uintptr_t)to % WIDTH);                      \
        for (; last - to >= 3 * WIDTH; to += 4 * WIDTH)                      \
            for (int k = 0; k < 4; k++) memcpy(to + k * WIDTH, &v, WIDTH);   \
        for (; to < last; to += WIDTH) memcpy(to, &v, WIDTH);                \
        memcpy(last, &v, WIDTH);                                             \
    }
ELIZA_FILL(fill4, eliza_i4)
ELIZA_FILL(fill8, eliza_i8)

#else
#define fill4 fill_short
#endif

/* Save a few cells, fill up to the last of them, put them back, and go on from there.

   ids are sorted, unique and below n; `minus_inf` is as `cells` of the fill. The number
   saved is fixed, so that no branch depends on where the ids are. At 2,000 ids among
   32,000 this takes 0.85 times NumPy's fill; filling the gaps between the ids takes 2.8
   times, as each gap ends with a branch that cannot be foreseen, and saving those of
   16 KiB at a time 1.4 times. */
#define ELIZA_MASK(name, cell, fill)                                          \
    ELIZA_INLINE void name(cell *row, int64_t n, const int32_t *ids,          \
                           int64_t n_ids, uint32_t minus_inf) {               \
        cell kept[ELIZA_KEPT];                                                \
        int64_t at = 0, end, i = 0;                                           \
        for (; n_ids - i >= ELIZA_KEPT; i += ELIZA_KEPT, at = end) {          \
            for (int k = 0; k < ELIZA_KEPT; k++) kept[k] = row[ids[i + k]];   \
            end = (int64_t)ids[i + ELIZA_KEPT - 1] + 1;                       \
            fill((char *)(row + at), (end - at) * (int64_t)sizeof(cell),      \
                 minus_inf);                                                  \
            for (int k = 0; k < ELIZA_KEPT; k++) row[ids[i + k]] = kept[k];   \
        }                                                                     \
        for (int64_t k = i; k < n_ids; k++) kept[k - i] = row[ids[k]];        \
        fill((char *)(row + at), (n - at) * (int64_t)sizeof(cell),            \
             minus_inf);                                                      \
        for (int64_t k = i; k < n_ids; k++) row[ids[k]] = kept[k - i];        \
    }

ELIZA_MASK(mask32_body, uint32_t, fill4)
ELIZA_MASK(mask16_body, uint16_t, fill4)
static void mask32_base(uint32_t *row, int64_t n, const int32_t *ids, int64_t n_ids,
                        uint32_t minus_inf) {
    mask32_body(row, n, ids, n_ids, minus_inf);
}
static void mask16_base(uint16_t *row, int64_t n, const int32_t *ids, int64_t n_ids,
                        uint32_t minus_inf) {
    mask16_body(row, n, ids, n_ids, minus_inf);
}

#ifdef ELIZA_AVX2
ELIZA_MASK(mask32_body8, uint32_t, fill8)
ELIZA_MASK(mask16_body8, uint16_t, fill8)
ELIZA_AVX2 static void mask32_avx2(uint32_t *row, int64_t n, const int32_t *ids,
                                   int64_t n_ids, uint32_t minus_inf) {
    mask32_body8(row, n, ids, n_ids, minus_inf);
}
ELIZA_AVX2 static void mask16_avx2(uint16_t *row, int64_t n, const int32_t *ids,
                                   int64_t n_ids, uint32_t minus_inf) {
    mask16_body8(row, n, ids, n_ids, minus_inf);
}
#endif

/* Write minus_inf, the bits of a float32 or twice those of a half float, to each cell
   whose id is not among ids; the others keep their bits. */
static inline void eliza_mask32(uint32_t *row, int64_t n, const int32_t *ids,
                                int64_t n_ids, uint32_t minus_inf) {
    ELIZA_CALL(mask32, row, n, ids, n_ids, minus_inf);
}
static inline void eliza_mask16(uint16_t *row, int64_t n, const int32_t *ids,
                                int64_t n_ids, uint32_t minus_inf) {
    ELIZA_CALL(mask16, row, n, ids, n_ids, minus_inf);
}

#endif

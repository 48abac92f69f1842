/* Loops that are compiled twice on x86 with GCC or Clang, for the baseline and for AVX2
   with FMA, and chosen at run time, so that one wheel serves all.

   A loop is written once, as ELIZA_INLINE name_body(...); the functions name_base(...)
   and, where ELIZA_AVX2 is defined, name_avx2(...) call it; ELIZA_CALL(name, ...) calls
   the right one of them. */
#ifndef ELIZA_SIMD_H
#define ELIZA_SIMD_H

#include <stdint.h>

#if defined(__GNUC__)
#define ELIZA_INLINE static inline __attribute__((always_inline))
typedef int32_t eliza_i4 __attribute__((vector_size(16)));
typedef int32_t eliza_i8 __attribute__((vector_size(32)));
#else
#define ELIZA_INLINE static inline
#endif

#if defined(__GNUC__) && defined(__x86_64__)
#define ELIZA_AVX2 __attribute__((target("avx2,fma")))
static int eliza_has_avx2;
static void eliza_detect(void) {
    __builtin_cpu_init();
    eliza_has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#define ELIZA_CALL(name, ...) \
    (eliza_has_avx2 ? name##_avx2(__VA_ARGS__) : name##_base(__VA_ARGS__))
#else
static void eliza_detect(void) {}
#define ELIZA_CALL(name, ...) name##_base(__VA_ARGS__)
#endif

#endif

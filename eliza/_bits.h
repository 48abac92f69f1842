/* Two instructions that C has no name for. */
#ifndef ELIZA_BITS_H
#define ELIZA_BITS_H

#if defined(__GNUC__)
#define eliza_clz64(x) __builtin_clzll(x)
#define eliza_prefetch(x) __builtin_prefetch(x)
#else
static int eliza_clz64(unsigned long long x) {
    int n = 0;
    for (; !(x >> 63); x <<= 1) n++;
    return n;
}
#define eliza_prefetch(x) ((void)(x))
#endif

#endif

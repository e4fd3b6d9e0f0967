/* The library's own code, compiled for processors with AVX2; elsewhere these call the library.  For xxh3.c only. */
#ifndef DS_BASE_XXH3_AVX2_H
#define DS_BASE_XXH3_AVX2_H

#include <stdbool.h>

#include "base/xxh3.h"

uint64_t xxh3_avx2(const void *p, size_t n);
void xxh3_add_avx2(struct xxh3_state *s, const void *p, size_t n);

#endif

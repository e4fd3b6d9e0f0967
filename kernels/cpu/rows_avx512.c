/* Row operations in AVX-512. */
#include "kernels/cpu/vec_avx512.h"

#define SET(name) name##_avx512
#include "kernels/cpu/rows_tile.h"

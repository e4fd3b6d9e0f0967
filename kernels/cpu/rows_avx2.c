/* Row operations in AVX2. */
#include "kernels/cpu/vec_avx2.h"

#define SET(name) name##_avx2
#include "kernels/cpu/rows_tile.h"

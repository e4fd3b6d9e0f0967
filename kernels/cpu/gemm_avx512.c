/* Products in float32, AVX-512. */
#include "kernels/cpu/vec_avx512.h"

#define SET(name) name##_avx512
enum { TILE_M = 6, TILE_N = 4, BLOCK_M = 3, BLOCK_N = 4, DIRECT_M = 6, STORE_M = 4 };
#define DIRECT_N 4, 4, 2, 2, 2, 2
#define DIRECT_ROW(B, SRC, STORE, M, N) DIRECT(B, SRC, STORE, M, N) DIRECT(B, SRC, STORE, M, 1)
#define ELEMS_ROW(B, M, N) ELEMS(B, M, N) ELEMS(B, M, 1)
#define DIRECT_ROWS(B, SRC) \
	DIRECT_ROW(B, SRC, 0, 1, 4) DIRECT_ROW(B, SRC, 0, 2, 4) DIRECT_ROW(B, SRC, 0, 3, 2) \
	DIRECT_ROW(B, SRC, 0, 4, 2) DIRECT_ROW(B, SRC, 0, 5, 2) DIRECT_ROW(B, SRC, 0, 6, 2)
#define TILE_LIST \
	ELEMS_ROW(0, 1, 4) ELEMS_ROW(0, 2, 4) ELEMS_ROW(0, 3, 4) ELEMS_ROW(0, 4, 4) ELEMS_ROW(0, 5, 4) \
	ELEMS_ROW(0, 6, 4) \
	ELEMS_ROW(1, 1, 4) ELEMS_ROW(1, 2, 4) ELEMS_ROW(1, 3, 4) \
	DIRECT_ROWS(0, SRC_F32) DIRECT_ROWS(0, SRC_BF16) DIRECT_ROWS(1, SRC_F8) \
	DIRECT_ROWS(0, SRC_DQ) DIRECT_ROW(0, SRC_DQ, 1, 4, 2) \
	DIRECT_ROW(0, SRC_BF16, 1, 4, 2) DIRECT_ROW(1, SRC_F8, 1, 4, 2)
#include "kernels/cpu/gemm_f32.h"

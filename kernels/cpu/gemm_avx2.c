/* Products in float32, AVX2: tiles for sixteen registers. */
#include "kernels/cpu/vec_avx2.h"

#define SET(name) name##_avx2
enum { TILE_M = 3, TILE_N = 4, BLOCK_M = 3, BLOCK_N = 2, DIRECT_M = 4, STORE_M0 = 3,
	DIRECT_TO = DIRECT_M, STORE_M1 = 3 };
#define DIRECT_ROW(B, SRC, AIM, M, N) DIRECT(B, SRC, AIM, M, N) DIRECT(B, SRC, AIM, M, 1)
#define ELEMS_ROW(B, M, N) ELEMS(B, M, N) ELEMS(B, M, 1)
#define DIRECT_ROWS(B, SRC) \
	DIRECT_ROW(B, SRC, MULTIPLY, 1, 4) DIRECT_ROW(B, SRC, MULTIPLY, 2, 2) \
	DIRECT_ROW(B, SRC, MULTIPLY, 3, 2) DIRECT(B, SRC, MULTIPLY, 4, 1)
#define TILE_LIST \
	ELEMS_ROW(0, 1, 4) ELEMS_ROW(0, 2, 4) ELEMS_ROW(0, 3, 4) \
	ELEMS_ROW(1, 1, 2) ELEMS_ROW(1, 2, 2) ELEMS_ROW(1, 3, 2) \
	DIRECT_ROWS(0, SRC_F32) DIRECT_ROWS(0, SRC_BF16) DIRECT_ROWS(1, SRC_F8) \
	DIRECT_ROWS(0, SRC_DQ) DIRECT_ROW(0, SRC_DQ, STORE, 3, 2) \
	DIRECT_ROW(0, SRC_BF16, STORE, 3, 2) DIRECT_ROW(1, SRC_F8, STORE, 3, 2)
#include "kernels/cpu/gemm_f32.h"

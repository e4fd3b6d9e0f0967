/* Products in float32, AVX-512. */
#include "kernels/cpu/vec_avx512.h"

#define SET(name) name##_avx512
enum { TILE_M = 6, TILE_N = 4, BLOCK_M = 3, BLOCK_N = 4, DIRECT_M = 4 };
#define DIRECT_N 4, 4, 2, 2
#define PACKED_ROW(M) PACKED(0, M, 4) PACKED(0, M, 1)
#define BLOCK_ROW(M) PACKED(1, M, 4) PACKED(1, M, 1)
#define DIRECT_ROWS(B, SRC) \
	DIRECT(B, SRC, 1, 4) DIRECT(B, SRC, 2, 4) DIRECT(B, SRC, 3, 2) DIRECT(B, SRC, 4, 2) \
	DIRECT(B, SRC, 1, 1) DIRECT(B, SRC, 2, 1) DIRECT(B, SRC, 3, 1) DIRECT(B, SRC, 4, 1)
#define TILE_LIST \
	PACKED_ROW(1) PACKED_ROW(2) PACKED_ROW(3) PACKED_ROW(4) PACKED_ROW(5) PACKED_ROW(6) \
	BLOCK_ROW(1) BLOCK_ROW(2) BLOCK_ROW(3) \
	DIRECT_ROWS(0, SRC_NONE) DIRECT_ROWS(0, SRC_F32) DIRECT_ROWS(0, SRC_BF16) DIRECT_ROWS(1, SRC_F8)
#include "kernels/cpu/gemm_f32.h"

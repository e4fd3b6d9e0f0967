/*
 * Element types and matrices, shared by checkpoints, frames and kernels.
 */
#ifndef DS_BASE_TENSOR_H
#define DS_BASE_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype { DT_NONE, DT_F32, DT_F16, DT_BF16, DT_F8_E4M3, DT_I32, DT_U32, DT_I64, DT_U8, DT_COUNT };

/* Name as in safetensors ("F8_E4M3"); dtype_parse returns DT_NONE for a name it does not know. */
const char *dtype_name(enum dtype t);
enum dtype dtype_parse(const char *name);
size_t dtype_size(enum dtype t); /* bytes an element */

enum { FP8_BLOCK = 128 }; /* rows and columns of a weight's scale block; columns of an activation's */

/*
 * A weight matrix where it lies (usually in a mapped checkpoint): [rows, cols] row-major, y = x W^T.
 * F8_E4M3: value = code * scale[r / 128][c / 128]; scale is F32 [ceil(rows/128), scale_ld], edge blocks partly used.
 */
struct mat {
	const void *data;   /* [rows, ld] */
	const float *scale; /* NULL unless type is DT_F8_E4M3 */
	size_t rows, cols;
	size_t ld;          /* elements from one row to the next */
	size_t scale_ld;    /* scales from one row of blocks to the next */
	/* where row 0 lies within the scale blocks: (row0 + r) / 128 picks the block row (for slices) */
	size_t row0;
	enum dtype type;
};

/* Rows r0 .. r0+n of a matrix, as a matrix; scales follow. */
struct mat mat_rows(const struct mat *m, size_t r0, size_t n);

static inline float bf16_to_f32(uint16_t h)
{
	union { uint32_t u; float f; } v = { .u = (uint32_t)h << 16 };
	return v.f;
}

/* Nearest, ties to even; a NaN stays a (quiet) NaN. */
static inline uint16_t f32_to_bf16(float f)
{
	union { float f; uint32_t u; } v = { .f = f };
	if ((v.u & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(v.u >> 16 | 0x40);
	return (uint16_t)((v.u + 0x7fffu + (v.u >> 16 & 1)) >> 16);
}

float f16_to_f32(uint16_t h);
float e4m3_to_f32(uint8_t code);   /* 0x7f and 0xff are NaN; there are no infinities */

/* Nearest, ties to even, saturating at +-448 (infinities too), NaN gives 0x7f. */
static inline uint8_t f32_to_e4m3(float f)
{
	union { float f; uint32_t u; } v = { .f = f }, tiny;
	uint32_t a = v.u & 0x7fffffff, sign = v.u >> 24 & 0x80, code;

	/* below 2^-6 are the subnormals, whose steps of 2^-9 are those of a float at 2^14 */
	tiny.u = a;
	tiny.f += 0x1p14f;
	code = a < 0x3c800000 ? tiny.u - 0x46800000 : ((a + 0x7ffff + (a >> 20 & 1)) >> 20) - (120 << 3);
	code = code > 0x7e ? 0x7e : code;
	return (uint8_t)(a > 0x7f800000 ? 0x7f : code | sign);
}

/* Elements where they lie, of any type but DT_NONE, at any alignment. */
bool dtype_is_real(enum dtype t);                            /* floating-point */
double value_at(enum dtype t, const void *p, uint64_t i);    /* I64 may lose its last bits */
int64_t int_at(enum dtype t, const void *p, uint64_t i);     /* of a whole-number type: exact */

#endif

/* Quantising a band of rows: the corners that whole models have not. */
#include <math.h>

#include "base/random.h"
#include "model/quantise.h"
#include "tests/unit/tap.h"

enum { ROWS = 128, COLS = 300, WIDE = 3 };

static float value[ROWS * COLS];
static uint8_t codes[ROWS * COLS];
static float scales[WIDE];

static struct mat matrix(const void *data, enum dtype type, size_t rows, size_t cols)
{
	return (struct mat){ .data = data, .type = type, .rows = rows, .cols = cols, .ld = cols };
}

static void fill(float size)
{
	for (size_t i = 0; i < ROWS * COLS; i++)
		value[i] = size * (float)(random_unit(5, i) - 0.5);
}

/* Every value is the one of its code times scale nearest to it (a code's neighbours are no nearer). */
static size_t wrong(size_t rows, size_t cols)
{
	size_t n = 0;

	for (size_t i = 0; i < rows * cols; i++) {
		float s = scales[i % cols / FP8_BLOCK], x = value[i] / s, is = e4m3_to_f32(codes[i]);

		for (int d = -1; d <= 1; d += 2) {
			int c = (codes[i] & 0x7f) + d;

			if (c >= 0 && c <= 0x7e)
				n += fabsf(copysignf(e4m3_to_f32((uint8_t)c), x) - x) < fabsf(is - x);
		}
		n += signbit(is) != signbit(x);
	}
	return n;
}

static void test_values(void)
{
	struct mat w = matrix(value, DT_F32, ROWS, COLS);
	float top = 0;

	fill(3);
	value[77 * COLS + 290] = -5;
	tap_ok(quantise_band(&w, 0, ROWS, false, codes, scales) && !wrong(ROWS, COLS), "codes are the nearest");
	tap_ok(scales[2] == 5.0f / 448.0f && codes[77 * COLS + 290] == 0xfe, "the largest becomes -448");
	for (size_t r = 0; r < ROWS; r++)
		for (size_t c = 0; c < 128; c++)
			top = fmaxf(top, fabsf(value[r * COLS + c]));
	tap_ok(scales[0] == top / 448.0f, "a block's scale is its own");
	tap_ok(quantise_band(&w, 0, ROWS, true, codes, scales) && !wrong(ROWS, COLS) && scales[2] == 0x1p-6f,
		"powers of two: 5 / 448 gives 2^-6");
	value[0] = value[77 * COLS + 290] = 7;
	quantise_band(&w, 0, ROWS, true, codes, scales);
	tap_ok(scales[0] == 0x1p-6f && codes[0] == 0x7e, "a power of two stays: 7 / 448 is 2^-6");
}

static void test_small(void)
{
	struct mat w = matrix(value, DT_F32, ROWS, COLS), one = matrix(value, DT_F32, 1, 1);

	memset(value, 0, sizeof(value));
	value[5] = -0.0f;
	tap_ok(quantise_band(&w, 0, ROWS, false, codes, scales) && scales[0] == 1 && scales[2] == 1 && codes[0] == 0 &&
		codes[5] == 0x80, "zeros have scale 1");
	tap_ok(quantise_band(&w, 0, ROWS, true, codes, scales) && scales[1] == 1, "also among powers of two");
	value[0] = 1e-44f;
	tap_ok(quantise_band(&w, 0, ROWS, false, codes, scales) && scales[0] == 1 && codes[0] == 0,
		"what is too small for a scale becomes 0");
	value[0] = 1e-30f;
	tap_ok(quantise_band(&w, 0, ROWS, false, codes, scales) && codes[0] == 0x7e, "what is small is not");
	value[0] = 3e38f;
	tap_ok(quantise_band(&one, 0, 1, false, codes, scales) && codes[0] == 0x7e && scales[0] == 3e38f / 448.0f,
		"one large value");
}

static void test_bad(void)
{
	static const float bad[] = { NAN, -NAN, INFINITY, -INFINITY };
	struct mat w = matrix(value, DT_F32, ROWS, COLS), h;
	uint16_t half[2] = { 0x7c00, 0 }, brain[2] = { 0, 0xff80 };

	for (size_t i = 0; i < 4; i++) {
		fill(1);
		value[ROWS * COLS - 1] = bad[i];
		tap_ok(!quantise_band(&w, 0, ROWS, false, codes, scales), "%g in the last corner is refused", bad[i]);
	}
	h = matrix(half, DT_F16, 1, 2);
	tap_ok(!quantise_band(&h, 0, 1, false, codes, scales), "an infinite F16");
	h = matrix(brain, DT_BF16, 1, 2);
	tap_ok(!quantise_band(&h, 0, 1, false, codes, scales), "an infinite BF16");
}

/* The three types give the same codes where their values are the same; rows of a band in the middle. */
static void test_types(void)
{
	static uint16_t half[200 * COLS], brain[200 * COLS];
	static float wide[200 * COLS];
	static uint8_t other[ROWS * COLS];
	float more[WIDE];
	struct mat w = matrix(wide, DT_F32, 200, COLS), h = matrix(half, DT_F16, 200, COLS),
		b = matrix(brain, DT_BF16, 200, COLS);

	for (size_t i = 0; i < 200 * COLS; i++) {
		half[i] = (uint16_t)((random_bits(9, i) & 0x83f8) | 0x3800); /* seven bits of mantissa at most */
		wide[i] = f16_to_f32(half[i]);
		brain[i] = f32_to_bf16(wide[i]);
	}
	quantise_band(&w, 128, 72, false, codes, scales);
	memcpy(value, wide + 128 * COLS, 72 * COLS * sizeof(*value));
	tap_ok(!wrong(72, COLS), "the rows asked for");
	quantise_band(&h, 128, 72, false, other, more);
	tap_ok(!memcmp(codes, other, 72 * COLS) && !memcmp(scales, more, sizeof(more)), "F16 as F32");
	quantise_band(&b, 128, 72, false, other, more);
	tap_ok(!memcmp(codes, other, 72 * COLS) && !memcmp(scales, more, sizeof(more)), "BF16 as F32");
}

static void test_back(void)
{
	static uint8_t all[256 * 2];
	static const float two[4] = { 0.75f, 1.25f, 3e-3f, 7 };
	uint16_t out[2 * 256];
	struct mat w = matrix(all, DT_F8_E4M3, 2, 256);
	size_t bad = 0;

	w.scale = two;
	w.scale_ld = 2;
	for (size_t i = 0; i < sizeof(all); i++)
		all[i] = (uint8_t)i;
	dequantise_band(&w, 0, 2, out);
	for (size_t i = 0; i < sizeof(all); i++)
		if ((all[i] & 0x7f) != 0x7f)
			bad += out[i] != f32_to_bf16(e4m3_to_f32(all[i]) * two[i % 256 / 128]);
	tap_ok(!bad, "back: code times scale, rounded");
}

int main(void)
{
	test_values();
	test_small();
	test_bad();
	test_types();
	test_back();
	return tap_done();
}

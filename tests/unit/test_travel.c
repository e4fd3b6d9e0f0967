/*
 * Rows that travel: put, taken and multiplied, they give the bits of rows that stayed; combined where they lie, those
 * of rows combined by number.
 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/kernels.h"
#include "normal.h"
#include "tap.h"

static const char *const sets[] = { "scalar", "avx2", "avx512f", "avx512bf16" };

enum { ROWS = 13, TAKEN = 9, OUT = 37, TOP = 3 };

static void *need(size_t bytes)
{
	void *p = mem_aligned(bytes + 1);

	if (!p)
		tap_bail("no memory");
	return p;
}

static float *values(size_t n, uint64_t seed, bool bf16)
{
	float *x = need(n * sizeof(*x));

	for (size_t i = 0; i < n; i++) {
		x[i] = (float)normal_at(seed, i);
		if (bf16)
			x[i] = bf16_to_f32(f32_to_bf16(x[i]));
	}
	return x;
}

static struct mat weight(enum dtype type, size_t cols)
{
	struct mat w = { .rows = OUT, .cols = cols, .ld = cols, .type = type, .scale_ld = (cols + 127) / 128 };
	unsigned char *p = need(OUT * cols * 4);
	float *scale = need(w.scale_ld * sizeof(*scale));

	for (size_t i = 0; i < OUT * cols; i++) {
		float v = (float)normal_at(9, i);

		if (type == DT_F8_E4M3)
			p[i] = f32_to_e4m3(v * 50);
		else if (type == DT_BF16)
			((uint16_t *)(void *)p)[i] = f32_to_bf16(v);
		else
			((float *)(void *)p)[i] = v;
	}
	for (size_t i = 0; i < w.scale_ld; i++)
		scale[i] = 0.01f * (float)(i + 1);
	w.data = p;
	w.scale = type == DT_F8_E4M3 ? scale : NULL;
	if (type != DT_F8_E4M3)
		free(scale);
	return w;
}

static void product(struct kern_stream *s, float *y, const struct act *x, const struct mat *w, const uint32_t *gather)
{
	struct gemm g = { .y = y, .ldy = OUT, .x = x, .w = w, .rows = TAKEN, .gather = gather };

	kern_gemm(s, &g, 1);
}

/* Rows go to places with guards around them, in another order, one of them twice. */
static void travel(struct kern_stream *s, enum act_kind as, enum act_kind kind, enum dtype type, size_t cols)
{
	static const uint32_t row[TAKEN] = { 12, 0, 5, 5, 7, 1, 11, 2, 9 };
	size_t bytes = kern_row_bytes(kind, cols), room = bytes + 32;
	float *x = values(ROWS * cols, cols, kind == ACT_BF16);
	float *stay = need(TAKEN * OUT * 4), *went = need(TAKEN * OUT * 4);
	unsigned char *way = need(TAKEN * room);
	void *buf = need(kern_pack_bytes(as, ROWS, cols)), *taken = need(kern_take_bytes(as, TAKEN, cols));
	struct mat w = weight(type, cols);
	struct act a, b;
	void *dst[TAKEN];
	bool guarded = true;

	x[5 * cols] = 0x1p120f; /* saturates or rounds as it may; NaN stays in its row */
	for (size_t i = 0; i < cols; i++)
		x[7 * cols + i] = 0;
	x[11 * cols + cols - 1] = NAN;
	memset(way, 0xa5, TAKEN * room);
	for (size_t i = 0; i < TAKEN; i++)
		dst[i] = way + i * room + 16;
	kern_pack(s, as, false, x, ROWS, cols, cols, buf, &a);
	kern_put_rows(s, kind, &a, row, dst, TAKEN);
	for (size_t i = 0; i < TAKEN; i++)
		for (size_t k = 0; k < 16; k++)
			guarded &= way[i * room + k] == 0xa5 && way[i * room + 16 + bytes + k] == 0xa5;
	tap_ok(guarded, "%s: rows of %zu stay within %zu bytes", kern_set_name(s), cols, bytes);
	kern_take_rows(s, kind, as, (const void *const *)dst, TAKEN, cols, taken, &b);
	product(s, stay, &a, &w, row);
	product(s, went, &b, &w, NULL);
	tap_ok(memcmp(stay, went, TAKEN * OUT * 4) == 0, "%s: %s rows of %zu, kind %d on their way: same products",
		kern_set_name(s), dtype_name(type), cols, (int)kind);
	free(x), free(stay), free(went), free(way), free(buf), free(taken);
	free((void *)(uintptr_t)w.data), free((void *)(uintptr_t)w.scale);
}

/* NULL rows: as if their weight's product were nothing at all, not 0 * what lies there. */
static void combine(struct kern_stream *s, enum act_kind kind, size_t cols, bool round)
{
	size_t bytes = kern_row_bytes(kind, cols), n = ROWS * TOP;
	float *x = values(n * cols, 3, kind == ACT_BF16), *y = values(ROWS * cols, 4, true), *z = need(ROWS * cols * 4);
	float *w = values(n, 5, false);
	unsigned char *way = need(n * bytes);
	const void *rows[ROWS * TOP];
	void *dst[ROWS * TOP];
	uint32_t slot[ROWS * TOP];
	struct act a = { .kind = ACT_F32, .rows = n, .cols = cols, .ld = cols, .data = x };

	memcpy(z, y, ROWS * cols * 4);
	for (size_t i = 0; i < n; i++) {
		slot[i] = (uint32_t)(i * 7 % n);
		rows[i] = dst[i] = way + slot[i] * bytes;
	}
	kern_put_rows(s, kind, &a, slot, dst, n);
	kern_combine(s, y, cols, x, cols, slot, w, TOP, ROWS, cols, round);
	kern_combine_rows(s, z, cols, rows, kind, w, TOP, ROWS, cols, round);
	tap_ok(memcmp(y, z, ROWS * cols * 4) == 0, "%s: combined where they lie, kind %d, %zu columns%s",
		kern_set_name(s), (int)kind, cols, round ? ", rounded" : "");
	rows[0] = rows[1] = rows[2] = NULL;
	memcpy(y, z, cols * 4);
	kern_combine_rows(s, z, cols, rows, kind, w, TOP, 1, cols, false);
	tap_ok(memcmp(y, z, cols * 4) == 0, "%s: a token without experts: nothing is added", kern_set_name(s));
	free(x), free(y), free(z), free(w), free(way);
}

static void run(const char *set, int threads)
{
	struct kern_stream *s;
	struct ds_err err;

	if (kern_stream_new(&s, threads, set, &err)) {
		tap_skip("%s: %s", set, err.text);
		return;
	}
	for (size_t cols = 64; cols <= 640; cols += 96) {
		travel(s, ACT_F8, ACT_F8, DT_F8_E4M3, cols);
		travel(s, ACT_BF16, ACT_BF16, DT_BF16, cols);
		travel(s, ACT_F32, ACT_BF16, DT_F32, cols);
		travel(s, ACT_F32, ACT_F32, DT_F32, cols);
	}
	for (size_t cols = 1; cols < 700; cols += 233) {
		combine(s, ACT_BF16, cols, true);
		combine(s, ACT_F32, cols, false);
	}
	kern_stream_free(s);
}

int main(void)
{
	tap_is_int(kern_row_bytes(ACT_F8, 7168), 7392, "a row of DeepSeek-V3 in FP8: 7,168 codes and 56 scales");
	tap_is_int(kern_row_bytes(ACT_BF16, 7168), 14336, "in BF16");
	for (size_t i = 0; i < ARRAY_LEN(sets); i++)
		for (int threads = 1; threads <= 3; threads += 2)
			run(sets[i], threads);
	return tap_done();
}

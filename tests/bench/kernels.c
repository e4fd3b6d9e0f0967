/*
 * Speed of the matrix products beside what this machine can do: reading memory (products of few rows) and multiplying
 * (products of many).
 * Usage: kernels [COLS ROWS]; prints one line a case.
 */
#include "base/random.h"
#include "limits.h"

/* ---- products ---- */

/* Matrices one after another in a large memory, so that no cache holds the next. */
struct weights {
	char *p;
	size_t bytes;
	float *scale;
	size_t rows, cols;
};

static double product_seconds(struct kern_stream *s, const struct weights *w, enum act_kind kind, const struct act *x,
	float *y)
{
	size_t esize = kind == ACT_F8 ? 1 : 2, each = w->rows * w->cols * esize, count = w->bytes / each;
	struct mat m = { .scale = w->scale, .rows = w->rows, .cols = w->cols, .ld = w->cols,
		.scale_ld = (w->cols + FP8_BLOCK - 1) / FP8_BLOCK, .type = kind == ACT_F8 ? DT_F8_E4M3 : DT_BF16 };
	struct gemm g = { .y = y, .ldy = w->rows, .x = x, .w = &m, .rows = x->rows };
	double best = 1e9, start = bench_seconds();

	/* the best single one: what else runs on the machine disturbs the mean */
	for (size_t n = 0; n < 4 || (bench_seconds() - start < 0.4 && n < 500); n++) {
		double t = bench_seconds();

		m.data = w->p + n % count * each;
		kern_gemm(s, &g, 1);
		t = bench_seconds() - t;
		if (t < best)
			best = t;
	}
	return best;
}

static void bench_kind(struct kern_stream *s, const struct weights *w, enum act_kind kind, double read, double peak)
{
	static const size_t rows[] = { 1, 4, 16, 64, 512 };
	size_t esize = kind == ACT_F8 ? 1 : 2;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		size_t m = rows[i];
		float *x = mem_array(m * w->cols, sizeof(*x)), *y = mem_array(m * w->rows, sizeof(*y));
		void *buf = mem_aligned(kern_pack_bytes(kind, m, w->cols));
		struct act a;
		double t, bytes = (double)(w->rows * w->cols * esize), ops = 2.0 * (double)(m * w->rows * w->cols);

		if (!x || !y || !buf)
			exit(71);
		for (size_t k = 0; k < m * w->cols; k++)
			x[k] = (float)random_unit(1, k) - 0.5f;
		kern_pack(s, kind, false, x, m, w->cols, w->cols, buf, &a);
		t = product_seconds(s, w, kind, &a, y);
		printf("%-10s %d threads  %-4s rows %3zu: %6.1f GB/s (%3.0f%% of reading)"
			"  %6.1f GFLOP/s (%3.0f%% of peak)\n",
			kern_set_name(s), kern_threads(s), kind == ACT_F8 ? "FP8" : "BF16", m, bytes / t / 1e9,
			100 * bytes / t / read, ops / t / 1e9, peak > 0 ? 100 * ops / t / peak : 0.0);
		fflush(stdout);
		free(x);
		free(y);
		free(buf);
	}
}

int main(int argc, char **argv)
{
	struct weights w = { .bytes = (size_t)512 << 20, .cols = 7168, .rows = 2048 };

	if (argc == 3) {
		w.cols = strtoul(argv[1], NULL, 10);
		w.rows = strtoul(argv[2], NULL, 10);
	}
	w.p = aligned_alloc(4096, w.bytes);
	w.scale = mem_array((w.rows / FP8_BLOCK + 1) * (w.cols / FP8_BLOCK + 1), sizeof(*w.scale));
	if (!w.p || !w.scale || w.cols == 0 || w.rows == 0 || w.rows * w.cols * 2 > w.bytes)
		return 71;
	for (size_t i = 0; i < w.bytes; i += 2) /* sound values both as two codes and as one bfloat16 */
		memcpy(w.p + i, &(uint16_t){ (uint16_t)(0x3c00 | (random_bits(2, i) & 0x837f)) }, 2);
	for (size_t i = 0; i < (w.rows / FP8_BLOCK + 1) * (w.cols / FP8_BLOCK + 1); i++)
		w.scale[i] = 0.01f;
	for (int threads = 1; threads <= 2; threads++) {
		struct kern_stream *s;
		struct ds_err err;
		double read, peak;

		if (kern_stream_new(&s, threads, NULL, &err)) {
			fprintf(stderr, "kernels: %s\n", err.text);
			return err.code;
		}
		read = limit_read(s, w.p, w.bytes);
		peak = limit_multiply(s);
		printf("%-10s %d threads  reads %.1f GB/s, multiplies at %.1f GFLOP/s\n", kern_set_name(s), threads,
			read / 1e9, peak / 1e9);
		bench_kind(s, &w, ACT_BF16, read, peak);
		bench_kind(s, &w, ACT_F8, read, peak);
		kern_stream_free(s);
	}
	free(w.p);
	free(w.scale);
	return 0;
}

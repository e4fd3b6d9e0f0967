/*
 * Speed of the matrix products beside what this machine can do: reading memory (products of few rows) and multiplying
 * (products of many).
 * Usage: kernels [COLS ROWS]; prints one line a case.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/mem.h"
#include "base/random.h"
#include "base/time.h"
#include "kernels/kernels.h"

enum { PIECE = 1 << 20 };

static double seconds(void)
{
	return (double)time_mono_ns() * 1e-9;
}

/* ---- limits ---- */

struct read_job {
	const uint64_t *p;
	uint64_t sum[64];
};

static void read_piece(void *arg, size_t i, int worker)
{
	struct read_job *j = arg;
	const uint64_t *p = j->p + i * (PIECE / 8);
	uint64_t a = 0, b = 0, c = 0, d = 0;

	for (size_t k = 0; k < PIECE / 8; k += 8) {
		a ^= p[k] ^ p[k + 4];
		b ^= p[k + 1] ^ p[k + 5];
		c ^= p[k + 2] ^ p[k + 6];
		d ^= p[k + 3] ^ p[k + 7];
	}
	j->sum[worker & 63] ^= a ^ b ^ c ^ d;
}

/* bytes a second, the best of some passes */
static double read_speed(struct kern_stream *s, const void *p, size_t bytes)
{
	struct read_job j = { .p = p };
	double best = 0;

	for (int pass = 0; pass < 5; pass++) {
		double t = seconds();

		kern_parallel(s, bytes / PIECE, read_piece, &j);
		t = seconds() - t;
		if ((double)bytes / t > best)
			best = (double)bytes / t;
	}
	return best;
}

enum { SPINS = 20000, CHAINS = 12 };

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bf16"))) static void spin_bf16(void *arg, size_t i, int worker)
{
	__m512 a[CHAINS];
	__m512bh x = (__m512bh)_mm512_set1_epi16((short)i);

	(void)arg, (void)worker;
	for (int c = 0; c < CHAINS; c++)
		a[c] = _mm512_setzero_ps();
	for (int k = 0; k < SPINS; k++)
		_Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++)
			a[c] = _mm512_dpbf16_ps(a[c], x, x);
	_Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++)
		__asm__ volatile("" : : "v"(a[c]));
}

__attribute__((target("avx512f"))) static void spin_512(void *arg, size_t i, int worker)
{
	__m512 a[CHAINS], x = _mm512_set1_ps((float)i);

	(void)arg, (void)worker;
	for (int c = 0; c < CHAINS; c++)
		a[c] = _mm512_setzero_ps();
	for (int k = 0; k < SPINS; k++)
		_Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++)
			a[c] = _mm512_fmadd_ps(x, x, a[c]);
	_Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++)
		__asm__ volatile("" : : "v"(a[c]));
}

__attribute__((target("avx2,fma"))) static void spin_256(void *arg, size_t i, int worker)
{
	__m256 a[CHAINS], x = _mm256_set1_ps((float)i);

	(void)arg, (void)worker;
	for (int c = 0; c < CHAINS; c++)
		a[c] = _mm256_setzero_ps();
	for (int k = 0; k < SPINS; k++)
		_Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++)
			a[c] = _mm256_fmadd_ps(x, x, a[c]);
	_Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++)
		__asm__ volatile("" : : "x"(a[c]));
}
#endif

/* The set's fastest multiply-add in operations a second (2 for a product and its sum); 0 where there is no loop for
 * it. */
static double peak_speed(struct kern_stream *s)
{
	double best = 0;
#if defined(__x86_64__)
	const char *set = kern_set_name(s);
	bool bf16 = strcmp(set, "avx512bf16") == 0, wide = strcmp(set, "avx512") == 0;
	void (*spin)(void *, size_t, int) = bf16 ? spin_bf16 : wide ? spin_512 : spin_256;
	double ops = 64.0 * SPINS * CHAINS * (bf16 ? 64 : wide ? 32 : 16);

	if (strcmp(set, "scalar") == 0)
		return 0;
	for (int pass = 0; pass < 3; pass++) {
		double t = seconds();

		kern_parallel(s, 64, spin, NULL);
		t = seconds() - t;
		if (ops / t > best)
			best = ops / t;
	}
#else
	(void)s;
#endif
	return best;
}

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
	double best = 1e9, start = seconds();

	/* the best single one: what else runs on the machine disturbs the mean */
	for (size_t n = 0; n < 4 || (seconds() - start < 0.4 && n < 500); n++) {
		double t = seconds();

		m.data = w->p + n % count * each;
		kern_gemm(s, &g, 1);
		t = seconds() - t;
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
		read = read_speed(s, w.p, w.bytes);
		peak = peak_speed(s);
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

/*
 * Attention of DeepSeek-V2-Lite's geometry, BF16 arithmetic: tokens a second of one layer, beside what the machine's
 * threads can multiply (BF16 pairs) and read at most.  Environment: DS_KERNELS, DS_THREADS (default: all CPUs).
 */
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "kernels/kernels.h"

enum { HEADS = 16, NOPE = 128, ROPE = 64, VDIM = 128, LORA = 512, PAGE = 64, ROW = LORA + ROPE, DEPTH = 4096,
	BATCH = 8 };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t state = 1;

static float uniform(void)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (float)((double)(state >> 11) / 0x1p52 - 1.0);
}

static uint16_t *random_bf16(size_t n, float size)
{
	uint16_t *p = mem_aligned(n * 2);

	for (size_t i = 0; p && i < n; i++)
		p[i] = f32_to_bf16(size * uniform());
	return p;
}

static float *random_f32(size_t n)
{
	float *p = mem_aligned(n * 4);

	for (size_t i = 0; p && i < n; i++)
		p[i] = bf16_to_f32(f32_to_bf16(uniform()));
	return p;
}

/* ---- what the machine can do ---- */

enum { PEAK_STEPS = 50000, ACCS = 12, SWEEP = 4 << 20, SWEEPS = 64, TRIES = 200 };

__attribute__((target("avx512f,avx512bf16"))) static void peak_bf16(void *arg, size_t i, int worker)
{
	__m512 acc[ACCS];
	__m512i x = _mm512_set1_epi32(0x3f803f80);

	(void)i;
#pragma GCC unroll 12
	for (int j = 0; j < ACCS; j++)
		acc[j] = _mm512_setzero_ps();
	for (int n = 0; n < PEAK_STEPS; n++)
#pragma GCC unroll 12
		for (int j = 0; j < ACCS; j++) {
			acc[j] = _mm512_dpbf16_ps(acc[j], (__m512bh)x, (__m512bh)x);
			__asm__ volatile("" : "+v"(acc[j]));
		}
#pragma GCC unroll 12
	for (int j = 1; j < ACCS; j++)
		acc[0] = _mm512_add_ps(acc[0], acc[j]);
	((float *)arg)[16 * worker] = _mm512_cvtss_f32(acc[0]);
}

__attribute__((target("avx2,fma"))) static void peak_f32(void *arg, size_t i, int worker)
{
	__m256 acc[ACCS], x = _mm256_set1_ps(1.0f);

	(void)i;
#pragma GCC unroll 12
	for (int j = 0; j < ACCS; j++)
		acc[j] = _mm256_setzero_ps();
	for (int n = 0; n < PEAK_STEPS; n++)
#pragma GCC unroll 12
		for (int j = 0; j < ACCS; j++) {
			acc[j] = _mm256_fmadd_ps(acc[j], x, x);
			__asm__ volatile("" : "+v"(acc[j]));
		}
#pragma GCC unroll 12
	for (int j = 1; j < ACCS; j++)
		acc[0] = _mm256_add_ps(acc[0], acc[j]);
	((float *)arg)[16 * worker] = _mm256_cvtss_f32(acc[0]);
}

static void read_all(void *arg, size_t i, int worker)
{
	const uint64_t *p = (const uint64_t *)arg + i * (SWEEP / 8);
	uint64_t sum[8] = { 0 };

	(void)worker;
	for (size_t n = 0; n < SWEEP / 8; n += 8)
		for (size_t j = 0; j < 8; j++)
			sum[j] += p[n + j];
	for (size_t j = 1; j < 8; j++)
		sum[0] += sum[j];
	__asm__ volatile("" : : "r"(sum[0]));
}

/* GFLOP/s of all threads in the arithmetic of the set, GB/s read from memory. */
static void limits(struct kern_stream *s, double *gflops, double *gbs)
{
	size_t threads = (size_t)kern_threads(s);
	bool pairs = strcmp(kern_set_name(s), "avx512bf16") == 0;
	char *area = mem_aligned((size_t)SWEEPS * threads * SWEEP);
	double t, best = 0;

	if (!area || !(pairs || __builtin_cpu_supports("fma"))) {
		free(area);
		return;
	}
	memset(area, 1, (size_t)SWEEPS * threads * SWEEP);
	for (int i = 0; i < TRIES; i++) { /* short, so that some run undisturbed on a busy machine */
		t = now();
		kern_parallel(s, threads, pairs ? peak_bf16 : peak_f32, area);
		t = (double)threads * PEAK_STEPS * ACCS * (pairs ? 64 : 16) / (now() - t) * 1e-9;
		best = t > best ? t : best;
	}
	*gflops = best;
	for (size_t i = 0; i < TRIES; i++) { /* by turns, so that none is in a cache */
		t = now();
		kern_parallel(s, threads, read_all, area + i % SWEEPS * threads * SWEEP);
		t = (double)(threads * SWEEP) / (now() - t) * 1e-9;
		*gbs = t > *gbs ? t : *gbs;
	}
	free(area);
}

/* ---- attention ---- */

struct bench {
	struct kern_stream *s;
	struct mat kv_b;
	struct attn_shape a;
	float *q, *out;                            /* [2048, HEADS, ...] */
	void *pages[BATCH][DEPTH / PAGE + 1];
	double gflops, gbs;
};

static struct attn_seg seg_of(struct bench *b, size_t i, size_t pos0, size_t rows)
{
	return (struct attn_seg){ .q = b->q + i * HEADS * (NOPE + ROPE), .ldq = HEADS * (NOPE + ROPE),
		.out = b->out + i * HEADS * VDIM, .ldo = HEADS * VDIM, .rows = rows, .pos0 = pos0,
		.kv = { b->pages[i], PAGE, ROW, DT_BF16 } };
}

/* Seconds of the fastest of some runs. */
static double best_time(struct bench *b, bool absorbed, struct attn_seg *segs, size_t count)
{
	double best = 1e9, total = 0, t;

	for (int i = 0; i < 3 || (total < 0.5 && i < 100); i++) {
		t = now();
		(absorbed ? kern_attn_absorbed : kern_attn_expanded)(b->s, &b->a, segs, count);
		t = now() - t;
		total += t;
		best = t < best ? t : best;
	}
	return best;
}

static void expanded(struct bench *b, size_t rows)
{
	struct attn_seg seg = seg_of(b, 0, 0, rows);
	double t = best_time(b, false, &seg, 1), n = (double)rows;
	double pairs = n * (n + 1) / 2, flop = 2 * HEADS * (n * LORA * (NOPE + VDIM) + pairs * (NOPE + ROPE + VDIM));

	printf("expanded, %4zu tokens            %9.0f tokens/s  %7.1f GFLOP/s  %3.0f %% of peak\n", rows, n / t,
		flop / t * 1e-9, 100 * flop / t * 1e-9 / b->gflops);
}

static void absorbed(struct bench *b, size_t depth, size_t batch)
{
	struct attn_seg segs[BATCH];
	double t, n = (double)batch, bytes, flop;

	for (size_t i = 0; i < batch; i++)
		segs[i] = seg_of(b, i, depth - 1, 1);
	t = best_time(b, true, segs, batch);
	bytes = n * (double)depth * ROW * 2 + HEADS * (NOPE + VDIM) * LORA * 2.0;
	flop = n * 2 * HEADS * ((double)depth * (ROW + LORA) + LORA * (NOPE + VDIM));
	printf("absorbed, depth %4zu, batch %zu    %9.0f tokens/s  %7.1f GFLOP/s  %3.0f %% of peak  "
		"%6.1f GB/s  %3.0f %% of read\n",
		depth, batch, n / t, flop / t * 1e-9, 100 * flop / t * 1e-9 / b->gflops, bytes / t * 1e-9,
		100 * bytes / t * 1e-9 / b->gbs);
}

int main(void)
{
	static struct bench b;
	const char *threads = getenv("DS_THREADS");
	struct ds_err err;

	if (kern_stream_new(&b.s, threads ? atoi(threads) : (int)sysconf(_SC_NPROCESSORS_ONLN), NULL, &err)) {
		fprintf(stderr, "attn: %s\n", err.text);
		return err.code;
	}
	b.kv_b = (struct mat){ .data = random_bf16((size_t)HEADS * (NOPE + VDIM) * LORA, 0.08f), .type = DT_BF16,
		.rows = HEADS * (NOPE + VDIM), .cols = LORA, .ld = LORA };
	b.a = (struct attn_shape){ HEADS, NOPE, ROPE, VDIM, LORA, 0.0722f, &b.kv_b, true };
	b.q = random_f32((size_t)2048 * HEADS * (NOPE + ROPE));
	b.out = random_f32((size_t)2048 * HEADS * VDIM);
	for (size_t i = 0; i < BATCH; i++)
		for (size_t p = 0; p < DEPTH / PAGE; p++)
			b.pages[i][p] = random_bf16((size_t)PAGE * ROW, 1.0f);
	limits(b.s, &b.gflops, &b.gbs);
	printf("kernels %s, %d threads: peak %.0f GFLOP/s, memory read %.1f GB/s\n", kern_set_name(b.s),
		kern_threads(b.s), b.gflops, b.gbs);
	expanded(&b, 512);
	expanded(&b, 2048);
	for (size_t depth = 512; depth <= 4096; depth *= 8) {
		absorbed(&b, depth, 1);
		absorbed(&b, depth, 8);
	}
	return 0;
}

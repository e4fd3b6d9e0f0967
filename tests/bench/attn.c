/*
 * Attention of DeepSeek-V2-Lite's geometry, BF16 arithmetic: tokens a second of one layer, beside what the machine's
 * threads can multiply (BF16 pairs) and read at most.  Environment: DS_KERNELS, DS_THREADS (default: all CPUs).
 */
#include <unistd.h>

#include "limits.h"

enum { HEADS = 16, NOPE = 128, ROPE = 64, VDIM = 128, LORA = 512, PAGE = 64, ROW = LORA + ROPE, DEPTH = 4096,
	BATCH = 8, SWEEP = 256 << 20 };

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

/* GFLOP/s of all threads in the arithmetic of the set, GB/s read from memory. */
static void limits(struct kern_stream *s, double *gflops, double *gbs)
{
	void *area = mem_aligned(SWEEP);

	if (!area)
		return;
	memset(area, 1, SWEEP);
	*gflops = limit_multiply(s) * 1e-9;
	*gbs = limit_read(s, area, SWEEP) * 1e-9;
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
		t = bench_seconds();
		(absorbed ? kern_attn_absorbed : kern_attn_expanded)(b->s, &b->a, segs, count);
		t = bench_seconds() - t;
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

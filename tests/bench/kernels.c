/*
 * Speed of the matrix products, over the shapes of tests/shapes.h, beside what this machine can do: reading memory
 * (products of few rows) and multiplying (products of many).  Shapes too small for a measurement of their own are left
 * out.  Usage: kernels [MODEL-DIRECTORY | V3 | V2-Lite | tiny]; prints one line a shape.
 */
#include "base/random.h"
#include "limits.h"
#include "tests/shapes.h"

enum { MEMORY = 256 << 20, MOST_ROWS = 512 };

static const size_t rows[] = { 1, 4, 16, 64, 512 };

struct bench {
	struct kern_stream *s;
	char *p;             /* [MEMORY]: matrices lie one after another in it, so that no cache holds the next */
	float *scale, *x, *y;
	void *buf;
	double read, peak;   /* bytes and operations a second, the best so far */
};

/* Weight rows of a shape that are measured: whole blocks of scales, some megabytes. */
static size_t weight_rows(const struct shape *s)
{
	size_t most = ((size_t)16 << 20) / s->k / FP8_BLOCK * FP8_BLOCK;

	return s->n < most ? s->n : most;
}

/* Seconds of the best single one: what else runs on the machine disturbs the mean. */
static double product_seconds(struct bench *b, const struct shape *s, size_t m)
{
	enum act_kind kind = s->type == DT_F8_E4M3 ? ACT_F8 : ACT_BF16;
	size_t n = weight_rows(s), each = round_up(n * s->k * dtype_size(s->type), 64), count = MEMORY / each;
	struct mat w = { .scale = b->scale, .rows = n, .cols = s->k, .ld = s->k,
		.scale_ld = (s->k + FP8_BLOCK - 1) / FP8_BLOCK, .type = s->type };
	struct act a;
	struct gemm g = { .y = b->y, .ldy = n, .x = &a, .w = &w, .rows = m };
	double best = 1e9, start = bench_seconds();

	kern_pack(b->s, kind, false, b->x, m, s->k, s->k, b->buf, &a);
	for (size_t i = 0; i < 4 || (bench_seconds() - start < 0.05 && i < 500); i++) {
		double t = bench_seconds();

		w.data = b->p + i % count * each;
		kern_gemm(b->s, &g, 1);
		t = bench_seconds() - t;
		best = t < best ? t : best;
	}
	return best;
}

static void measure_limits(struct bench *b)
{
	double read = limit_read(b->s, b->p, MEMORY), peak = limit_multiply(b->s);

	b->read = read > b->read ? read : b->read;
	b->peak = peak > b->peak ? peak : b->peak;
}

static void bench_shape(struct bench *b, const struct shape *s)
{
	double bytes = (double)(weight_rows(s) * s->k * dtype_size(s->type));

	measure_limits(b);
	printf("  %-7s %-11s %-5s %5zu of %6zu x %5zu", s->model, s->name, s->type == DT_F8_E4M3 ? "FP8" : "BF16",
		weight_rows(s), s->n, s->k);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		double t = product_seconds(b, s, rows[i]), ops = 2.0 * (double)(rows[i] * weight_rows(s) * s->k);

		if (rows[i] <= 4)
			printf(" %6.1f GB/s %3.0f %%", bytes / t / 1e9, 100 * bytes / t / b->read);
		else
			printf("  %5.0f GF %3.0f %%", ops / t / 1e9, 100 * ops / t / b->peak);
	}
	printf("\n");
	fflush(stdout);
}

static void *need(void *p)
{
	if (!p) {
		fprintf(stderr, "kernels: out of memory\n");
		exit(71);
	}
	return p;
}

static void prepare(struct bench *b)
{
	size_t widest = 0, tallest = 0, blocks = 0;

	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		const struct shape *s = &shapes[i];
		size_t n = weight_rows(s) / FP8_BLOCK + 1, k = s->k / FP8_BLOCK + 1;

		widest = s->k > widest ? s->k : widest;
		tallest = weight_rows(s) > tallest ? weight_rows(s) : tallest;
		blocks = n * k > blocks ? n * k : blocks;
	}
	b->p = need(aligned_alloc(2 << 20, MEMORY));
	mem_huge(b->p, MEMORY); /* as a checkpoint is mapped that was read from disk */
	for (size_t i = 0; i < MEMORY; i += 2) /* sound values both as two codes and as one bfloat16 */
		memcpy(b->p + i, &(uint16_t){ (uint16_t)(0x3c00 | (random_bits(2, i) & 0x837f)) }, 2);
	b->scale = need(mem_array(blocks, sizeof(float)));
	for (size_t i = 0; i < blocks; i++)
		b->scale[i] = 0.01f;
	b->x = need(mem_array(MOST_ROWS * widest, sizeof(float)));
	for (size_t i = 0; i < MOST_ROWS * widest; i++)
		b->x[i] = (float)random_unit(1, i) - 0.5f;
	b->y = need(mem_array(MOST_ROWS * tallest, sizeof(float)));
	b->buf = need(mem_aligned(kern_pack_bytes(ACT_F8, MOST_ROWS, widest)));
}

static void bench_threads(struct bench *b, int threads, const char *model)
{
	struct ds_err err;

	if (kern_stream_new(&b->s, threads, NULL, &err)) {
		fprintf(stderr, "kernels: %s\n", err.text);
		exit(err.code);
	}
	b->read = b->peak = 0;
	printf("%s, %d threads; weight rows measured of all, x columns; with 1 and 4 rows beside the read loop, "
		"with 16, 64, 512 beside the multiply peak:\n", kern_set_name(b->s), threads);
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
		if (shapes[i].n * shapes[i].k >= (size_t)1 << 16 && (!model || !strcmp(model, shapes[i].model)))
			if (shapes[i].type != DT_F16 && shapes[i].type != DT_F32)
				bench_shape(b, &shapes[i]);
	printf("  read loop %.1f GB/s, multiply peak %.0f GFLOP/s\n", b->read / 1e9, b->peak / 1e9);
	kern_stream_free(b->s);
}

int main(int argc, char **argv)
{
	static struct bench b;
	const char *model = NULL;

	for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
		if (argc > 1 && strcmp(argv[1], shapes[i].model) == 0)
			model = argv[1];
	prepare(&b);
	for (int threads = 1; threads <= 2; threads++)
		bench_threads(&b, threads, model);
	free(b.p);
	free(b.scale);
	free(b.x);
	free(b.y);
	free(b.buf);
	return 0;
}

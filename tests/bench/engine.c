/*
 * The engine on a 2 GB checkpoint: the first step, prefill and decode, beside what the machine reads and multiplies at
 * most. Usage: engine MODEL
 */
#include <sys/wait.h>
#include <unistd.h>

#include "base/random.h"
#include "engine/engine.h"
#include "limits.h"

enum { MAX_ROWS = 2048, MAX_BATCH = 32, READ_BYTES = 512 << 20 };

static void die(const struct ds_err *err)
{
	fprintf(stderr, "engine: %s\n", err->text);
	exit(err->code);
}

/* A figure of /proc/self/status in MiB. */
static double status_mib(const char *key)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[200];
	double kib = 0;

	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, key, strlen(key)) == 0)
			kib = atof(line + strlen(key));
	if (f)
		fclose(f);
	return kib / 1024;
}

struct setup {
	struct model *m;
	struct engine *e;
	struct kv_pool *pool;
	struct kv_seq seqs[MAX_BATCH];
	uint32_t ids[MAX_ROWS];
};

static void open_all(struct setup *s, const char *dir, int threads, size_t rows)
{
	struct engine_config c = { .threads = threads, .max_rows = rows, .max_segs = MAX_BATCH };
	struct ds_err err;

	memset(s, 0, sizeof(*s));
	if (model_open(&s->m, dir, &err) || engine_new(&s->e, s->m, &c, &err) ||
	    engine_kv_pool(s->e, (uint64_t)1 << 30, &s->pool, &err))
		die(&err);
	for (size_t i = 0; i < MAX_ROWS; i++)
		s->ids[i] = (uint32_t)(random_bits(1, i) % s->m->config.vocab);
}

static void close_all(struct setup *s)
{
	for (size_t i = 0; i < MAX_BATCH; i++)
		kv_seq_clear(&s->seqs[i], s->pool);
	kv_pool_free(s->pool);
	engine_free(s->e);
	model_close(s->m);
}

/* One step of `batch` sequences, rows tokens each; seconds. */
static double step(struct setup *s, size_t batch, size_t rows, bool absorbed)
{
	struct segment segs[MAX_BATCH];
	struct ds_err err;
	double t;

	for (size_t i = 0; i < batch; i++) {
		segs[i] = (struct segment){ .kv = &s->seqs[i], .tokens = s->ids + i * rows, .rows = rows,
			.absorbed = absorbed, .want_logits = true };
		if (!kv_seq_reserve(&s->seqs[i], s->pool, s->seqs[i].length + rows))
			exit(71);
	}
	t = bench_seconds();
	if (engine_step(s->e, segs, batch, &err))
		die(&err);
	return bench_seconds() - t;
}

/* ---- first step ---- */

static void first_step(const char *dir, int threads)
{
	struct setup s;
	double t0, t1, t2;

	if (fork() == 0) {
		t0 = bench_seconds();
		open_all(&s, dir, threads, 512);
		t1 = bench_seconds();
		step(&s, 1, 1, false);
		t2 = bench_seconds();
		printf("first step, %d threads: open %.1f ms + step %.1f ms = %.1f ms (goal 50); "
			"own memory %.0f MiB, mapped %.0f MiB\n",
			threads, (t1 - t0) * 1e3, (t2 - t1) * 1e3, (t2 - t0) * 1e3,
			status_mib("RssAnon:"), status_mib("RssFile:"));
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
}

/* ---- throughput ---- */

struct work_size { double weight_bytes, weight_flops; };

/* Weights that one token reads (FP8: a byte each, head and router two), and the products of a prefill row (no head). */
static struct work_size work_of(const struct model *m)
{
	const struct config *c = &m->config;
	double active = (double)config_params(c).active, head = (double)(c->vocab * c->hidden);
	double router = (double)((c->layers - c->dense_layers) * c->experts * c->hidden);
	double wide = c->fp8 ? head + router : active;

	return (struct work_size){ .weight_bytes = active + wide, .weight_flops = 2.0 * (active - head) };
}

/* Multiply-adds of causal attention in the expanded form over n tokens, times 2. */
static double attention_flops(const struct config *c, size_t n)
{
	return (double)c->layers * (double)c->heads * (double)n * (double)(n + 1) / 2.0 * 2.0 *
		(double)(c->nope + c->rope + c->v);
}

static void prefill(struct setup *s, size_t n, double peak)
{
	double best = 1e9, flops = work_of(s->m).weight_flops * (double)n + attention_flops(&s->m->config, n);

	for (int i = 0; i < 3; i++) {
		double t;

		kv_seq_clear(&s->seqs[0], s->pool);
		t = step(s, 1, n, false);
		best = t < best ? t : best;
	}
	printf("  prefill %4zu: %7.1f tokens/s  %6.1f GFLOP/s  %3.0f %% of the multiply peak\n", n, (double)n / best,
		flops / best / 1e9, 100.0 * flops / best / peak);
}

static void decode(struct setup *s, size_t batch, size_t depth, double read)
{
	double total = 0, rate, bytes = work_of(s->m).weight_bytes;
	int steps = 24;

	for (size_t i = 0; i < batch; i++)
		kv_seq_clear(&s->seqs[i], s->pool);
	for (size_t at = 0; at < depth; at += 64)
		step(s, batch, 64, false);
	for (int i = 0; i < steps; i++)
		total += step(s, batch, 1, true);
	rate = (double)batch * steps / total;
	if (batch == 1)
		printf("  decode  %4zu at depth %zu: %7.1f tokens/s  %5.1f GB/s of weights  %3.0f %% of the "
			"read loop\n",
			batch, depth, rate, rate * bytes / 1e9, 100.0 * rate * bytes / read);
	else
		printf("  decode  %4zu at depth %zu: %7.1f tokens/s\n", batch, depth, rate);
}

static void throughput(const char *dir, int threads)
{
	struct kern_stream *stream = NULL;
	struct ds_err err;
	double read, peak;
	struct setup s;
	char *memory = mem_aligned(READ_BYTES);
	int rc = memory ? kern_stream_new(&stream, threads, NULL, &err) : err_nomem(&err, READ_BYTES,
		"the bandwidth test");

	if (rc)
		die(&err);
	memset(memory, 1, READ_BYTES);
	read = limit_read(stream, memory, READ_BYTES);
	peak = limit_multiply(stream);
	free(memory);
	printf("%d threads, %s: reads %.1f GB/s, multiplies %.0f GFLOP/s\n", threads, kern_set_name(stream),
		read / 1e9, peak / 1e9);
	kern_stream_free(stream);
	open_all(&s, dir, threads, MAX_ROWS);
	prefill(&s, 32, peak);
	prefill(&s, 128, peak);
	prefill(&s, 512, peak);
	prefill(&s, 2048, peak);
	decode(&s, 1, 64, read);
	decode(&s, 1, 512, read);
	decode(&s, 8, 64, read);
	decode(&s, 32, 64, read);
	close_all(&s);
}

int main(int argc, char **argv)
{
	int cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);

	if (argc != 2) {
		fprintf(stderr, "usage: engine MODEL\n");
		return 64;
	}
	for (int i = 0; i < 3; i++) /* the first brings the file into memory */
		first_step(argv[1], cpus);
	first_step(argv[1], 1);
	throughput(argv[1], 1);
	if (cpus > 1)
		throughput(argv[1], cpus);
	return 0;
}

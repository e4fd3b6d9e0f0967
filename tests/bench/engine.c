/*
 * The engine on a 2 GB checkpoint: the first step, prefill and decode, beside what the machine reads and multiplies at
 * most and beside a peer; then what a token of the example model costs.  Rounds of all measurements follow one another,
 * each with its own reading of the limits, and medians over rounds are printed: what else runs on the machine hits all
 * alike.  Usage: engine MODEL
 */
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/random.h"
#include "engine/engine.h"
#include "engine/profile.h"
#include "limits.h"
#include "model/checkpoint.h"

enum { MAX_ROWS = 2048, MAX_BATCH = 32, MAX_DEPTH = 4096, ROUNDS = 5 };

static void die(const struct ds_err *err)
{
	fprintf(stderr, "engine: %s\n", err->text);
	exit(err->code);
}

/* A figure of a file of /proc/self in MiB. */
static double proc_mib(const char *file, const char *key)
{
	FILE *f = fopen(file, "r");
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
			.absorbed = absorbed, .want_logits = 1 };
		if (!kv_seq_reserve(&s->seqs[i], s->pool, s->seqs[i].length + rows))
			exit(71);
	}
	t = bench_seconds();
	if (engine_step(s->e, segs, batch, &err))
		die(&err);
	return bench_seconds() - t;
}

/* ---- first step ---- */

/* Has the system forget the files, so that it reads them from disk, as a server that starts does. */
static void forget(const char *dir)
{
	struct model *m;
	struct ds_err err;
	int fd[64];
	size_t n;

	if (model_open(&m, dir, &err))
		die(&err);
	n = m->files->file_count < 64 ? m->files->file_count : 64;
	for (size_t i = 0; i < n; i++)
		fd[i] = open(m->files->files[i].path, O_RDONLY | O_CLOEXEC);
	model_close(m);
	for (size_t i = 0; i < n; i++) {
		fdatasync(fd[i]);
		posix_fadvise(fd[i], 0, 0, POSIX_FADV_DONTNEED);
		close(fd[i]);
	}
}

/* Has the system hold all of the files, in the pieces in which the engine reads them. */
static void warm(const char *dir)
{
	struct model *m;
	struct ds_err err;

	if (model_open(&m, dir, &err))
		die(&err);
	for (size_t i = 0; i < m->files->file_count; i++) {
		const volatile char *p = m->files->files[i].map;

		for (size_t at = 0; at < m->files->files[i].size; at += 4096)
			(void)p[at];
	}
	model_close(m);
}

/* In a program of its own, which began at t0: what a user waits for. */
static int first_step_alone(const char *dir, int threads, const char *note, double t0)
{
	struct setup s;
	double t1 = bench_seconds(), t2, t3;

	open_all(&s, dir, threads, 512);
	t2 = bench_seconds();
	step(&s, 1, 1, false);
	t3 = bench_seconds();
	printf("first step, %d threads%s: start %.1f ms + open %.1f ms + step %.1f ms = %.1f ms; own memory %.0f MiB, "
		"mapped %.0f MiB, in huge pages %.0f MiB\n", threads, note, (t1 - t0) * 1e3, (t2 - t1) * 1e3,
		(t3 - t2) * 1e3, (t3 - t0) * 1e3, proc_mib("/proc/self/status", "RssAnon:"),
		proc_mib("/proc/self/status", "RssFile:"), proc_mib("/proc/self/smaps_rollup", "FilePmdMapped:"));
	return 0;
}

static void first_step(const char *dir, int threads, const char *note)
{
	char count[16], began[32];
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		snprintf(count, sizeof(count), "%d", threads);
		snprintf(began, sizeof(began), "%.9f", bench_seconds());
		execl("/proc/self/exe", "engine", dir, count, note, began, (char *)NULL);
		_exit(71);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || status)
		fprintf(stderr, "engine: the first step could not be measured\n");
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

/* What is measured; peer: tokens a second of llama.cpp with 1 and 2 threads, 0: not known. */
static const struct task {
	const char *name;
	size_t batch, rows, depth; /* rows 1: decode */
	int steps, rounds;
	const char *goal;
	double peer[2];
	const char *format;
} tasks[] = {
	{ "prefill 32", 1, 32, 0, 2, ROUNDS, "", { 0, 365 }, "bf16" },
	{ "prefill 128", 1, 128, 0, 1, ROUNDS, "", { 0, 426 }, "bf16" },
	{ "prefill 512", 1, 512, 0, 1, ROUNDS, "goal 55 % with 1 thread, 50 % with 2", { 245, 471 }, "bf16" },
	{ "prefill 2048", 1, 2048, 0, 1, 3, "", { 0, 331 }, "bf16" },
	{ "decode 1, depth 64", 1, 1, 64, 10, ROUNDS, "goal 85 %", { 52.6, 79.8 }, "q8_0, empty context" },
	{ "decode 1, depth 512", 1, 1, 512, 10, ROUNDS, "", { 35.7, 57.5 }, "bf16" },
	{ "decode 1, depth 4096", 1, 1, 4096, 10, ROUNDS, "", { 0, 47.9 }, "q8_0" },
	{ "decode 8, depth 64", 8, 1, 64, 4, ROUNDS, "", { 0, 0 }, "" },
	{ "decode 32, depth 64", 32, 1, 64, 3, ROUNDS, "", { 0, 0 }, "" },
	{ "decode 32, depth 512", 32, 1, 512, 3, ROUNDS, "", { 0, 0 }, "" },
};

enum { PREFILL_512 = 2, PREFILL_2048 = 3, DECODE_1 = 4, DECODE_32 = 8, TASKS = ARRAY_LEN(tasks) };

/* read, peak: the limits of each round; paired: bytes a second of decode over those of the reads between its steps;
 * roof: tokens a second that the limits of the round allow. */
struct figures { double rate[TASKS][ROUNDS], paired[TASKS][ROUNDS], roof[TASKS][ROUNDS], read[ROUNDS], peak[ROUNDS]; };

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(const double *v, int n)
{
	double sorted[ROUNDS];

	memcpy(sorted, v, (size_t)n * sizeof(*v));
	qsort(sorted, (size_t)n, sizeof(*sorted), by_size);
	return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static double median_ratio(const double *a, const double *b, int n)
{
	double ratio[ROUNDS];

	for (int i = 0; i < n; i++)
		ratio[i] = a[i] / b[i];
	return median(ratio, n);
}

/* Gives the sequences a context of `depth` tokens, whose numbers do not matter to the speed. */
static void deepen(struct setup *s, size_t batch, size_t depth)
{
	for (size_t i = 0; i < batch; i++) {
		kv_seq_clear(&s->seqs[i], s->pool);
		if (!kv_seq_reserve(&s->seqs[i], s->pool, depth + 1))
			exit(71);
		for (size_t b = 0; b < s->seqs[i].count; b++)
			memset(s->seqs[i].pages[b], 0x3c, s->pool->block_bytes);
		s->seqs[i].length = depth;
	}
}

static double task_step(struct setup *s, const struct task *t)
{
	for (size_t b = 0; b < t->batch; b++)
		s->seqs[b].length = t->depth;
	return step(s, t->batch, t->rows, t->rows == 1);
}

/* Seconds to read as many bytes as a token's weights have, other ones each time, none of which a cache holds. */
static double read_weights(struct setup *s, struct kern_stream *stream, size_t bytes)
{
	const struct st_file *file = s->m->files->files;
	static size_t at;

	if (at + bytes > file->size)
		at = 0;
	at += bytes;
	return (double)bytes / kern_probe_read(stream, (const char *)file->map + at - bytes, bytes);
}

/* Tokens a second; between steps of one token as many bytes are read as they take, and *paired is how fast the one is
 * by the other, whatever the machine's memory does meanwhile. */
static double measure(struct setup *s, struct kern_stream *stream, const struct task *t, double *paired)
{
	double total = 0, reading = 0, bytes = work_of(s->m).weight_bytes;
	size_t whole = (size_t)bytes >> 20 << 20;

	deepen(s, t->batch, t->depth);
	for (int i = 0; i < t->steps; i++) {
		total += task_step(s, t);
		if (t->batch * t->rows == 1)
			reading += read_weights(s, stream, whole) * bytes / (double)whole;
	}
	*paired = reading / total;
	return (double)t->batch * (double)t->rows * t->steps / total;
}

/* Tokens a second if every stage took as long as reading its weights or multiplying, whichever is more. */
static double roof(struct setup *s, const struct task *t, double read, double peak)
{
	struct profile_options o = { .program = "engine", .stats = true };
	double seconds = 0;
	struct profile *p;
	struct ds_err err;

	if (profile_new(&p, &o, &err) || engine_set_profile(s->e, p, s->pool, &err))
		die(&err);
	task_step(s, t);
	for (int i = 0; i < STAGE_COUNT; i++) {
		const struct stage_sum *sum = &profile_sums(p)->stage[i];
		double reading = (double)sum->weight_bytes / read, computing = (double)sum->operations / peak;

		seconds += reading > computing ? reading : computing;
	}
	if (engine_set_profile(s->e, NULL, s->pool, &err))
		die(&err);
	profile_free(p);
	return (double)t->batch * (double)t->rows / seconds;
}

/* The limits and every task, once each. */
static void one_round(struct setup *s, struct kern_stream *stream, struct figures *f, int round)
{
	const struct st_file *file = s->m->files->files;
	size_t bytes = file->size < (size_t)512 << 20 ? file->size : (size_t)512 << 20;

	f->read[round] = limit_read(stream, file->map, bytes); /* where the weights lie */
	f->peak[round] = limit_multiply(stream);
	for (size_t i = 0; i < TASKS; i++)
		if (round < tasks[i].rounds) {
			f->rate[i][round] = measure(s, stream, &tasks[i], &f->paired[i][round]);
			f->roof[i][round] = roof(s, &tasks[i], f->read[round], f->peak[round]);
		}
}

static void report_task(const struct model *m, const struct figures *f, size_t i, int threads)
{
	const struct task *t = &tasks[i];
	struct work_size w = work_of(m);
	double rate = median(f->rate[i], t->rounds), flops = w.weight_flops;

	printf("  %-22s %8.1f tokens/s", t->name, rate);
	if (t->rows > 1) {
		flops += attention_flops(&m->config, t->rows) / (double)t->rows;
		printf("  %6.1f GFLOP/s %3.0f %% of the multiply peak", rate * flops * 1e-9,
			100 * flops * median_ratio(f->rate[i], f->peak, t->rounds));
	} else if (t->batch == 1) {
		printf("  %6.1f GB/s    %3.0f %% of the read loop    ", rate * w.weight_bytes * 1e-9,
			100 * median(f->paired[i], t->rounds));
	} else {
		printf("  %6.2f times batch 1, %3.0f %% of the roof  ",
			median_ratio(f->rate[i], f->rate[DECODE_1], t->rounds),
			100 * median_ratio(f->rate[i], f->roof[i], t->rounds));
	}
	if (threads <= 2 && t->peer[threads - 1] > 0)
		printf("  peer* %.1f (%s)", t->peer[threads - 1], t->format);
	printf("%s%s\n", *t->goal ? "  " : "", t->goal);
}

static void throughput(const char *dir, int threads)
{
	static struct figures f;
	struct kern_stream *stream;
	struct setup s;
	struct ds_err err;

	if (kern_stream_new(&stream, threads, NULL, &err))
		die(&err);
	open_all(&s, dir, threads, MAX_ROWS);
	step(&s, 1, 512, false); /* pages are taken, clocks rise */
	for (int i = 0; i < ROUNDS; i++)
		one_round(&s, stream, &f, i);
	printf("%d threads, %s: the read loop takes %.1f GB/s of the mapped weights, multiplies reach %.0f GFLOP/s; "
		"medians of %d rounds\n", threads, kern_set_name(stream), median(f.read, ROUNDS) / 1e9,
		median(f.peak, ROUNDS) / 1e9, ROUNDS);
	for (size_t i = 0; i < TASKS; i++)
		report_task(s.m, &f, i, threads);
	printf("  a token of 2048 costs %.0f %% more than one of 512 (goal: at most 15 %%; peer* 30 %%)\n",
		100 * (median_ratio(f.rate[PREFILL_512], f.rate[PREFILL_2048], tasks[PREFILL_2048].rounds) - 1));
	printf("  decode of 32 is %.1f times as fast as of 1 (goal: 8); at the limits of reading and multiplying it "
		"were %.1f times\n", median_ratio(f.rate[DECODE_32], f.rate[DECODE_1], ROUNDS),
		median_ratio(f.roof[DECODE_32], f.rate[DECODE_1], ROUNDS));
	kern_stream_free(stream);
	close_all(&s);
}

/* ---- overhead ---- */

enum { TINY_STEPS = 2000 };

static void tiny(const char *dir, int threads)
{
	static double ms[TINY_STEPS];
	struct setup s;

	open_all(&s, dir, threads, 64);
	deepen(&s, 1, 64);
	for (int i = 0; i < TINY_STEPS; i++) {
		s.seqs[0].length = 64;
		ms[i] = 1e3 * step(&s, 1, 1, true);
	}
	qsort(ms, TINY_STEPS, sizeof(*ms), by_size);
	printf("example model, decode 1, depth 64, %d threads: %.3f ms a token (median; a tenth below %.3f)  "
		"goal 0.15; peer* %.2f, 13.5 M parameters, q8_0\n", threads, ms[TINY_STEPS / 2], ms[TINY_STEPS / 10],
		threads == 1 ? 0.28 : 0.24);
	close_all(&s);
}

int main(int argc, char **argv)
{
	int cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);

	if (argc == 5)
		return first_step_alone(argv[1], atoi(argv[2]), argv[3], atof(argv[4]));
	if (argc != 2) {
		fprintf(stderr, "usage: engine MODEL\n");
		return 64;
	}
	forget(argv[1]);
	first_step(argv[1], cpus, " (from disk)");
	warm(argv[1]);
	for (int i = 0; i < 3; i++)
		first_step(argv[1], cpus, " (goal 50 ms)");
	first_step(argv[1], 1, "");
	throughput(argv[1], 1);
	if (cpus > 1)
		throughput(argv[1], cpus);
	for (int threads = 1; threads <= 2 && threads <= cpus; threads++)
		tiny("examples/models/tiny-r1", threads);
	printf("* llama.cpp, measured on another machine than this: 2 cores of a Zen 5\n");
	return 0;
}

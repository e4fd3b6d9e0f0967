/* The profile: bytes and operations of the example model's stages by hand, nesting, drafts; the trace's writer. */
#include "base/time.h"
#include "base/trace.h"
#include "engine/engine.h"
#include "tests/unit/tap.h"

static struct profile *new_profile(void)
{
	struct profile_options o = { .program = "test", .stats = true };
	struct ds_err err;
	struct profile *p;

	if (profile_new(&p, &o, &err) || !p)
		tap_bail("no profile");
	return p;
}

/* ---- counting ---- */

/* examples/models/tiny-r1: FP8 with a 4-byte scale a block of 128 x 128; hidden 256, q_lora and kv_lora 128, 4 heads of
 * 64 + 32 and 64, dense 512, experts 128, one shared, router 32 x 256 and head 1024 x 256 in BF16. */
enum {
	Q_A = 128 * 256 + 8, Q_B = 384 * 128 + 12, KV_A = 160 * 256 + 16, KV_B = 512 * 128 + 16, O = 256 * 256 + 16,
	ROUTER = 32 * 256 * 2, DENSE = 3 * (512 * 256 + 32), EXPERT = 3 * (128 * 256 + 8), HEAD = 1024 * 256 * 2,
	LAYERS = 3, MOE = 2, TOP_K = 4, ROW = 160 * 2
};

static void same(const struct profile_sums *s, enum stage_id stage, uint64_t calls, uint64_t weights, uint64_t cache,
	uint64_t operations)
{
	const struct stage_sum *x = &s->stage[stage];

	tap_ok(x->calls == calls && x->weight_bytes == weights && x->cache_bytes == cache &&
		x->operations == operations, "%s: %llu calls, %llu and %llu bytes, %llu operations", stage_name(stage),
		(unsigned long long)x->calls, (unsigned long long)x->weight_bytes, (unsigned long long)x->cache_bytes,
		(unsigned long long)x->operations);
}

static struct profile_sums less(const struct profile_sums *a, const struct profile_sums *b)
{
	struct profile_sums d = *a;

	for (int i = 0; i < STAGE_COUNT; i++) {
		d.stage[i].calls -= b->stage[i].calls;
		d.stage[i].weight_bytes -= b->stage[i].weight_bytes;
		d.stage[i].cache_bytes -= b->stage[i].cache_bytes;
		d.stage[i].operations -= b->stage[i].operations;
	}
	return d;
}

static void one_row(const struct profile_sums *s)
{
	same(s, STAGE_EMBED, 1, 512, 0, 0);
	same(s, STAGE_ATTN0, LAYERS, LAYERS * (Q_A + Q_B + KV_A), 0, 2 * LAYERS * (128 * 256 + 384 * 128 + 160 * 256));
	/* absorbed, at position 5: 6 pairs */
	same(s, STAGE_ATTN1, LAYERS, LAYERS * (KV_B + O) + MOE * ROUTER, LAYERS * 6 * ROW, LAYERS *
		(2 * 256 * 256 + 2 * 4 * (128 * 128 + 6 * (2 * 128 + 32))) + MOE * 2 * 32 * 256);
	same(s, STAGE_DISPATCH, MOE, 0, 0, 0);
	same(s, STAGE_SHARED, MOE, MOE * EXPERT, 0, MOE * 2 * 3 * 128 * 256);
	same(s, STAGE_MLP, MOE, MOE * TOP_K * EXPERT, 0, MOE * TOP_K * 2 * 3 * 128 * 256);
	same(s, STAGE_COMBINE, MOE, 0, 0, 0);
	same(s, STAGE_DENSE, 1, DENSE, 0, 2 * 3 * 512 * 256);
	same(s, STAGE_HEAD, 1, HEAD, 0, 2 * 1024 * 256);
	same(s, STAGE_SAMPLE, 0, 0, 0, 0);
}

static void five_rows(const struct profile_sums *s)
{
	uint64_t mlp = s->stage[STAGE_MLP].weight_bytes;

	/* expanded, from position 0: 15 pairs */
	same(s, STAGE_ATTN1, LAYERS, LAYERS * (KV_B + O) + MOE * ROUTER, LAYERS * 5 * ROW, LAYERS *
		(5 * 2 * 256 * 256 + 2 * 4 * (5 * 128 * 128 + 15 * (64 + 32 + 64))) + 5 * MOE * 2 * 32 * 256);
	tap_ok(mlp % EXPERT == 0 && mlp / EXPERT >= MOE * TOP_K && mlp / EXPERT <= MOE * TOP_K * 5,
		"MLP reads the experts that got rows: %llu", (unsigned long long)(mlp / EXPERT));
	tap_ok(s->stage[STAGE_MLP].operations == 5 * MOE * TOP_K * 2 * 3 * 128 * 256, "MLP computes each pair once");
	same(s, STAGE_HEAD, 1, HEAD, 0, 2 * 1024 * 256);
}

static void test_counts(void)
{
	struct engine_config ec = { .threads = 2, .max_rows = 8, .max_segs = 2 };
	uint32_t tokens[6] = { 3, 99, 512, 1000, 7, 42 };
	struct profile *p = new_profile();
	struct profile_sums first, second;
	struct kv_seq kv = { .pages = NULL };
	struct segment seg = { .kv = &kv, .tokens = tokens, .rows = 5, .want_logits = 1 };
	struct kv_pool *pool;
	struct engine *e;
	struct model *m;
	struct ds_err err;

	if (model_open(&m, "examples/models/tiny-r1", &err) || engine_new(&e, m, &ec, &err) ||
	    engine_kv_pool(e, 1 << 20, &pool, &err) || engine_set_profile(e, p, pool, &err))
		tap_bail("%s", err.text);
	if (!kv_seq_reserve(&kv, pool, 6) || engine_step(e, &seg, 1, &err))
		tap_bail("no step");
	first = *profile_sums(p);
	five_rows(&first);
	seg = (struct segment){ .kv = &kv, .tokens = tokens + 5, .rows = 1, .absorbed = true, .want_logits = 1 };
	if (engine_step(e, &seg, 1, &err))
		tap_bail("%s", err.text);
	second = less(profile_sums(p), &first);
	one_row(&second);
	tap_ok(profile_sums(p)->steps == 2 && profile_sums(p)->rows == 6, "2 steps of 6 rows");
	engine_set_profile(e, NULL, NULL, &err);
	profile_free(p);
	kv_seq_clear(&kv, pool);
	kv_pool_free(pool);
	engine_free(e);
	model_close(m);
}

/* ---- spans ---- */

static void wait_ns(int64_t ns)
{
	int64_t until = time_mono_ns() + ns;

	while (time_mono_ns() < until)
		;
}

static void test_spans(void)
{
	struct profile *p = new_profile();
	const struct profile_sums *s = profile_sums(p);
	int64_t began = time_mono_ns(), all;

	profile_step_begin(p, false, 3, 1);
	profile_begin(p, STAGE_MLP, 1, 3);
	wait_ns(1000000);
	profile_begin(p, STAGE_COMBINE, 1, 3);
	wait_ns(2000000);
	profile_next(p, STAGE_HEAD);
	wait_ns(500000);
	profile_end(p);
	profile_end(p);
	profile_step_end(p);
	all = time_mono_ns() - began;
	tap_ok(s->stage[STAGE_MLP].ns >= 1000000 && s->stage[STAGE_COMBINE].ns >= 2000000 &&
		s->stage[STAGE_HEAD].ns >= 500000, "stages last as long as they last");
	tap_ok(s->stage[STAGE_MLP].ns + s->stage[STAGE_COMBINE].ns + s->stage[STAGE_HEAD].ns <= s->step_ns &&
		s->step_ns <= all, "a stage's time is not that of stages within it");
	profile_end(p);
	profile_next(p, STAGE_EMBED);
	tap_ok(s->stage[STAGE_EMBED].calls == 0 && s->steps == 1, "an end without a beginning is nothing");
	profile_step_begin(p, true, 2, 1);
	profile_begin(p, STAGE_EMBED, SIZE_MAX, 2);
	wait_ns(100000);
	profile_end(p);
	profile_step_end(p);
	tap_ok(s->stage[STAGE_EMBED].calls == 0 && s->stage[STAGE_MTP].calls == 1 && s->stage[STAGE_MTP].ns >= 100000 &&
		s->steps == 1 && s->rows == 3, "a draft is one call of MTP and no step");
	for (int i = 0; i < 9; i++)
		profile_begin(p, STAGE_EMBED, SIZE_MAX, 2);
	for (int i = 0; i < 9; i++)
		profile_end(p);
	tap_ok(s->stage[STAGE_EMBED].calls > 0, "too deep a nest is cut");
	profile_free(p);
}

static void test_off(void)
{
	struct profile_options o = { .program = "test" };
	struct profile *p = new_profile();
	struct ds_err err = { 0 };

	profile_free(p);
	tap_ok(profile_new(&p, &o, &err) == 0 && !p, "nothing asked for: no profile");
	profile_step_begin(p, false, 1, 1);
	profile_begin(p, STAGE_EMBED, 0, 1);
	profile_next(p, STAGE_HEAD);
	profile_gemm(p, NULL, 0);
	profile_embed(p, NULL, 0);
	profile_attn(p, NULL, NULL, 0, false);
	profile_request(p, 1, "r", 1);
	profile_request_end(p, 1, "r");
	profile_end(p);
	profile_step_end(p);
	profile_free(p);
	tap_ok(profile_finish(p, false, &err) == 0, "all calls take NULL");
}

/* ---- the writer ---- */

static size_t read_file(const char *path, char *text, size_t size)
{
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(text, 1, size - 1, f) : 0;

	text[n] = 0;
	if (f)
		fclose(f);
	return n;
}

static void test_writer(const char *path)
{
	static char text[1 << 16];
	struct ds_err err;
	struct trace *t;

	if (trace_open(&t, path, false, 3, "test", &err))
		tap_bail("%s", err.text);
	trace_lane(t, 1, "lane");
	trace_span(t, 1, "a", 1234567, 2234569, "\"n\":%d", 7);
	trace_async(t, 'b', "request", 255, "say \"x\"\n", 5, NULL);
	trace_flush(t, 0);
	tap_ok(read_file(path, text, sizeof(text)) > 0 && text[strlen(text) - 1] == '\n', "flushed lines are whole");
	tap_ok(strstr(text, "{\"ph\":\"X\",\"pid\":3,\"tid\":1,\"name\":\"a\",\"ts\":1234.567,\"dur\":1000.002,"
		"\"args\":{\"n\":7}},\n") != NULL, "a span");
	tap_ok(strstr(text, "\"cat\":\"request\",\"id\":\"0xff\",\"name\":\"say \\\"x\\\"\\n\",\"ts\":0.005},\n"),
		"a name is quoted");
	tap_ok(!trace_failed(t) && trace_close(t, &err) == 0, "it is closed");
	read_file(path, text, sizeof(text));
	tap_ok(strlen(text) > 3 && !strcmp(text + strlen(text) - 4, "}\n]\n"), "the array has its end");
	tap_ok(trace_open(&t, path, false, 0, "test", &err) == DS_USAGE, "a file that is there is kept: %s", err.text);
	tap_ok(trace_open(&t, path, true, 0, "test", &err) == 0 && trace_close(t, &err) == 0, "unless it is forced");
	tap_ok(trace_close(NULL, &err) == 0, "no trace is closed");
}

static void test_bounds(const char *path)
{
	struct ds_err err;
	struct trace *t;
	struct stat sb;

	if (trace_open(&t, path, true, 0, "test", &err))
		tap_bail("%s", err.text);
	for (int i = 0; i < 5000; i++)
		trace_span(t, 1, "span", i, i + 1, NULL);
	tap_ok(stat(path, &sb) == 0 && sb.st_size > 5000 * 50 - (70 << 10), "no more than 64 KiB are kept back");
	trace_close(t, &err);
	if (access("/dev/full", W_OK)) {
		tap_skip("no /dev/full");
		return;
	}
	if (trace_open(&t, "/dev/full", false, 0, "test", &err))
		tap_bail("%s", err.text);
	tap_ok(trace_failed(t) != NULL && !trace_failed(t), "a failure is told once");
	trace_span(t, 1, "span", 1, 2, NULL);
	tap_ok(trace_close(t, &err) == DS_IO, "and at the end: %s", err.text);
}

/* ---- watching threads ---- */

struct watched { size_t items, calls; int64_t begin, end; int workers; };

static void seen(void *ctx, int worker, size_t items, int64_t begin, int64_t end)
{
	struct watched *w = ctx;

	w->calls++;
	w->items += items;
	w->workers |= 1 << worker;
	w->begin = w->begin && w->begin < begin ? w->begin : begin;
	w->end = end > w->end ? end : w->end;
}

static void item(void *arg, size_t i, int worker)
{
	(void)i, (void)worker;
	wait_ns(*(const int64_t *)arg);
}

static void test_watch(void)
{
	struct watched w = { 0 };
	struct kern_stream *s;
	struct ds_err err;
	int64_t ns = 300000, before, after;

	if (kern_stream_new(&s, 2, "scalar", &err) || kern_watch(s, seen, &w, &err))
		tap_bail("%s", err.text);
	before = time_mono_ns();
	kern_parallel(s, 20, item, &ns);
	after = time_mono_ns();
	tap_ok(w.items == 20 && w.calls >= 1 && w.calls <= 2 && !(w.workers & ~3), "20 items, by %zu threads", w.calls);
	tap_ok(before <= w.begin && w.end <= after && w.end - w.begin >= 3000000, "within the job");
	kern_watch(s, NULL, NULL, &err);
	kern_parallel(s, 5, item, &ns);
	tap_ok(w.items == 20, "and nothing when nobody looks");
	kern_watch(s, seen, &w, &err);
	kern_stream_free(s);
}

int main(void)
{
	char path[] = "/tmp/test_profile.XXXXXX";
	int fd = mkstemp(path);

	if (fd < 0)
		tap_bail("no temporary file");
	close(fd);
	unlink(path);
	test_counts();
	test_spans();
	test_off();
	test_writer(path);
	test_bounds(path);
	test_watch();
	unlink(path);
	return tap_done();
}

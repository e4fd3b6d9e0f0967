/*
 * Law 2 in units: every sequence's logits, and its drafts', are the bits that one engine alone gives, whatever the
 * number of ranks, redundant experts, micro-batches, the order of overlap, the rounds a batch takes, and the transport;
 * ranks without a sequence take part.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "engine/engine.h"
#include "ep/ep.h"
#include "ranks.h"
#include "tap.h"

enum { SEQS = 10, STEPS = 5, CHUNK = 32, MAX_ROWS = 320 };

struct way {
	const char *dir, *transport, *kernels;
	size_t world, redundant, micro_batches, tokens;
	enum overlap overlap;
	enum arith arith;
	bool mtp, alone;
	char addr[64];
	float *logits, *drafts; /* [SEQS, STEPS, vocab], of all ranks */
	size_t vocab, hidden;
};

struct seq {
	struct kv_seq kv;
	uint32_t ids[256], token;
	size_t length, fed, made, number;
};

static size_t prompt_length(size_t i)
{
	static const size_t lengths[SEQS] = { 1, 2, 63, 64, 65, 130, 7, 200, 31, 3 };

	return lengths[i];
}

/* The sequence's part of the next step; false: it is done. */
static bool next_segment(struct seq *s, struct segment *g)
{
	size_t left = s->length - s->fed;

	*g = (struct segment){ .kv = &s->kv, .want_logits = 1, .rows = 1, .tokens = &s->token, .absorbed = true };
	if (!left)
		return s->made < STEPS;
	*g = (struct segment){ .kv = &s->kv, .rows = left < CHUNK ? left : CHUNK, .tokens = s->ids + s->fed };
	g->want_logits = g->rows == left;
	return true;
}

/* The MTP entry behind the last token: its hidden state, and the token that was chosen. */
static int draft(struct engine *e, struct way *w, struct seq **who, struct segment *segs, size_t n)
{
	struct segment d[SEQS];
	uint32_t next[SEQS];
	size_t count = 0;
	struct ds_err err;

	for (size_t i = 0; i < n; i++) {
		if (!segs[i].want_logits)
			continue;
		next[count] = segs[i].argmax[0];
		who[count] = who[i];
		/* entries of the prompt are not made: the draft is a bad one, but always the same */
		segs[i].kv->mtp = segs[i].kv->length - 1;
		d[count] = (struct segment){ .kv = segs[i].kv, .tokens = &next[count], .rows = 1, .want_logits = 1,
			.absorbed = true, .h = segs[i].hidden + (segs[i].rows - 1) * w->hidden };
		count++;
	}
	if (!count || !engine_mtp(e, d, count, &err)) {
		for (size_t i = 0; i < count; i++)
			memcpy(w->drafts + (who[i]->number * STEPS + who[i]->made - 1) * w->vocab, d[i].logits,
				w->vocab * sizeof(float));
		return 0;
	}
	tap_diag("%s", err.text);
	return err.code;
}

static int step(struct engine *e, struct kv_pool *pool, struct way *w, struct seq *seqs, size_t count, bool *busy)
{
	struct seq *who[SEQS];
	struct segment segs[SEQS];
	struct ds_err err;
	size_t n = 0;

	for (size_t i = 0; i < count; i++)
		if (next_segment(&seqs[i], &segs[n])) {
			if (!kv_seq_reserve(&seqs[i].kv, pool, seqs[i].kv.length + segs[n].rows))
				return 1;
			who[n++] = &seqs[i];
		}
	*busy = n > 0;
	if (!n)
		return 0;
	if (engine_step(e, segs, n, &err)) {
		tap_diag("%s", err.text);
		return err.code;
	}
	for (size_t i = 0; i < n; i++) {
		struct seq *s = who[i];

		if (s->fed < s->length)
			s->fed += segs[i].rows;
		if (!segs[i].want_logits)
			continue;
		memcpy(w->logits + (s->number * STEPS + s->made++) * w->vocab, segs[i].logits,
			w->vocab * sizeof(float));
		s->token = segs[i].argmax[0];
	}
	return w->mtp ? draft(e, w, who, segs, n) : 0;
}

static int open_unit(struct way *w, struct model *m, size_t rank, struct engine_config *c, struct ep **ep)
{
	struct ep_config u = { .tokens = w->tokens, .redundant = w->redundant };
	struct ds_err err;

	u.unit = (struct unit_config){ .addr = w->addr, .rank = rank, .world = w->world, .transport = w->transport,
		.unit_timeout_ns = 30000000000, .peer_timeout_ns = 10000000000 };
	engine_ep_shape(m, c, &u.shape);
	if (ep_open(ep, &u, &err)) {
		tap_diag("%s", err.text);
		return err.code;
	}
	c->ep = *ep;
	return 0;
}

/* In a trace of steps that overlap nothing, SHARED comes when the experts' outputs are there, never while they are on
 * their way. */
static bool nothing_hidden(const char *trace)
{
	FILE *f = fopen(trace, "r");
	size_t shared = 0, hiding = 0;
	bool there = false;
	char line[1000];

	while (f && fgets(line, sizeof(line), f)) {
		if (!strstr(line, "\"tid\":1,"))
			continue;
		if (strstr(line, "\"name\":\"SHARED\"")) {
			shared++;
			hiding += !there;
		}
		there = strstr(line, "\"name\":\"wait COMBINE\"") != NULL;
	}
	if (f)
		fclose(f);
	return shared && !hiding;
}

static struct profile *trace_steps(struct engine *e, struct kv_pool *pool, char path[100])
{
	struct profile_options o = { .program = "test", .trace = path };
	struct profile *p;
	struct ds_err err;

	snprintf(path, 100, "/tmp/unit-trace-%d", (int)getpid());
	unlink(path); /* of a process of that number that was killed */
	if (profile_new(&p, &o, &err) || engine_set_profile(e, p, pool, &err))
		tap_bail("%s", err.text);
	return p;
}

static int rank_main(size_t rank, void *arg)
{
	struct way *w = arg;
	struct engine_config c = { .arith = w->arith, .threads = 1 + (int)(rank % 2), .kernels = w->kernels,
		.max_rows = MAX_ROWS, .max_segs = SEQS, .mtp = w->mtp, .overlap = w->overlap,
		.micro_batches = w->micro_batches };
	struct seq *seqs = calloc(SEQS, sizeof(*seqs));
	struct kv_pool *pool;
	struct engine *e;
	struct model *m;
	struct ep *ep = NULL;
	struct profile *p = NULL;
	struct ds_err err;
	char trace[100];
	bool busy = true;
	size_t count = 0;
	int rc = model_open(&m, w->dir, &err);

	if (!rc && !w->alone)
		rc = open_unit(w, m, rank, &c, &ep);
	if (rc || engine_new(&e, m, &c, &err) || engine_kv_pool(e, 64 << 20, &pool, &err))
		return 1;
	if (ep && w->overlap == OVERLAP_NONE)
		p = trace_steps(e, pool, trace);
	for (size_t i = rank; i < SEQS; i += w->world) {
		seqs[count].number = i;
		seqs[count].length = prompt_length(i);
		for (size_t t = 0; t < prompt_length(i); t++)
			seqs[count].ids[t] = (uint32_t)(random_bits(i, t) % m->config.vocab);
		count++;
	}
	while (!rc && busy)
		rc = step(e, pool, w, seqs, count, &busy);
	if (!rc && ep && engine_stay(e, &err))
		rc = 1;
	if (p && (profile_finish(p, false, &err) || (count && !nothing_hidden(trace))))
		rc = rc ? rc : 1;
	if (p)
		unlink(trace);
	profile_free(p);
	for (size_t i = 0; i < count; i++)
		kv_seq_clear(&seqs[i].kv, pool);
	kv_pool_free(pool);
	engine_free(e);
	ep_close(ep);
	model_close(m);
	free(seqs);
	return rc;
}

/* Runs what *w says and compares with `want`, which one engine gave. */
static void compare(struct way w, const struct way *want)
{
	size_t bytes = SEQS * STEPS * want->vocab * sizeof(float);
	static unsigned runs;

	snprintf(w.addr, sizeof(w.addr), "unix:%s/unit-%d-%u", "/tmp", (int)getpid(), runs++);
	w.vocab = want->vocab;
	w.logits = ranks_share(bytes);
	w.drafts = ranks_share(bytes);
	tap_ok(ranks_run(w.world, rank_main, &w) == 0 && memcmp(w.logits, want->logits, bytes) == 0 &&
			(!w.mtp || memcmp(w.drafts, want->drafts, bytes) == 0),
		"%s, %s, %s: %zu ranks, %zu redundant, %zu micro-batches, order %d, rounds of %zu: the same bits",
		w.dir, w.kernels ? w.kernels : "fastest", w.transport, w.world, w.redundant, w.micro_batches,
		(int)w.overlap, w.tokens);
	munmap(w.logits, bytes);
	munmap(w.drafts, bytes);
}

static void test_model(const char *dir, bool mtp, enum arith arith, const char *kernels)
{
	static const size_t worlds[] = { 1, 2, 3, 4, 7, 16 };
	struct way want = { .dir = dir, .arith = arith, .mtp = mtp, .alone = true, .world = 1, .kernels = kernels };
	struct model *m;
	struct ds_err err;
	size_t bytes;

	if (model_open(&m, dir, &err))
		tap_bail("%s", err.text);
	want.vocab = m->config.vocab;
	want.hidden = m->config.hidden;
	bytes = SEQS * STEPS * want.vocab * sizeof(float);
	want.logits = ranks_share(bytes);
	want.drafts = ranks_share(bytes);
	tap_ok(ranks_run(1, rank_main, &want) == 0, "%s alone", dir);
	for (size_t i = 0; i < ARRAY_LEN(worlds); i++) {
		struct way w = want;

		if (m->config.experts < worlds[i] || (tap_slow() && worlds[i] != 3))
			continue;
		w.alone = false;
		w.world = worlds[i];
		w.redundant = i % 3 * 8;
		w.micro_batches = 1 + i % 2;
		w.overlap = i % 3 == 0 ? OVERLAP_DECODE : OVERLAP_PREFILL;
		w.tokens = i % 2 ? 64 : 5;
		w.transport = i % 2 ? "shm" : "tcp";
		compare(w, &want);
		w.micro_batches = 2;
		w.overlap = OVERLAP_DECODE;
		w.tokens = 256;
		w.transport = i % 2 ? "tcp" : "shm";
		compare(w, &want);
		w.micro_batches = 1;
		w.overlap = OVERLAP_NONE;
		compare(w, &want);
	}
	munmap(want.logits, bytes);
	munmap(want.drafts, bytes);
	model_close(m);
}

int main(void)
{
	char path[1000];

	test_model("examples/models/tiny-r1", true, ARITH_BF16, NULL);
	if (tap_slow())
		return tap_done();
	test_model("examples/models/tiny-r1", true, ARITH_F32, "scalar");
	tap_unpack(path, "v2lite-tiny");
	test_model(path, false, ARITH_BF16, NULL);
	tap_unpack(path, "v2-group-tiny");
	test_model(path, false, ARITH_F32, NULL);
	tap_unpack(path, "v3-tiny-fp8");
	test_model(path, false, ARITH_BF16, "scalar");
	return tap_done();
}

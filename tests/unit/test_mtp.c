/*
 * The MTP layer: drafts agree with the goldens; verifying several rows at once gives the bits of one at a time, and
 * what a wrong draft left in the cache is gone.
 */
#include "exam.h"

enum { MOST_DRAFTS = 4 };

struct run { size_t drafted, accepted, steps, equal; };

static void step(struct rig *r, struct segment *s)
{
	struct ds_err err;

	if (!kv_seq_reserve(&r->seq, r->pool, r->seq.length + s->rows) || engine_step(r->e, s, 1, &err))
		tap_bail("step failed");
}

static void mtp(struct rig *r, struct segment *s)
{
	struct ds_err err;

	if (!kv_seq_reserve(&r->seq, r->pool, r->seq.mtp + s->rows) || engine_mtp(r->e, s, 1, &err))
		tap_bail("MTP step failed");
}

/* The prompt, in chunks, through the model and the MTP layer but for its last entry, whose hidden state goes to h. */
static uint32_t feed(struct rig *r, const uint32_t *ids, size_t n, size_t chunk, float *h)
{
	size_t hidden = r->m->config.hidden;
	uint32_t token = 0;

	rig_reset(r);
	for (size_t at = 0, take; at < n; at += take) {
		struct segment s = { .kv = &r->seq, .tokens = ids + at, .want_logits = 1 };

		take = chunk < n - at ? chunk : n - at;
		s.rows = take;
		step(r, &s);
		token = s.argmax[0];
		memcpy(h, s.hidden + (take - 1) * hidden, hidden * sizeof(*h));
		s = (struct segment){ .kv = &r->seq, .tokens = ids + at + 1, .rows = take - (at + take == n),
			.h = s.hidden };
		mtp(r, &s);
	}
	return token;
}

/* Drafts `n` tokens that follow `token`, from pending entries: h [rows, hidden], next [rows] tokens. */
static void draft(struct rig *r, const float *h, const uint32_t *next, size_t rows, uint32_t *drafts, size_t n)
{
	struct segment s = { .kv = &r->seq, .tokens = next, .rows = rows, .absorbed = true, .want_logits = 1, .h = h };
	size_t kept;

	mtp(r, &s);
	kept = r->seq.mtp;
	drafts[0] = s.argmax[0];
	for (size_t i = 1; i < n; i++) {
		s = (struct segment){ .kv = &r->seq, .tokens = &drafts[i - 1], .rows = 1, .absorbed = true,
			.want_logits = 1, .h = s.hidden + (s.rows - 1) * r->m->config.hidden };
		mtp(r, &s);
		drafts[i] = s.argmax[0];
	}
	r->seq.mtp = kept;
}

/* Greedy generation with n drafts a step. */
static void speculate(struct rig *r, const struct answer *a, size_t n, struct run *run)
{
	size_t hidden = r->m->config.hidden, made = 1, rows = 1, equal;
	float *h = mem_array((n + 1) * hidden, sizeof(*h));
	uint32_t tokens[MOST_DRAFTS + 2]; /* the last one and the drafts of those that follow */
	uint32_t next[MOST_DRAFTS + 1];   /* tokens after the pending hidden states */

	next[0] = feed(r, a->prompt, a->prompt_n, 1024, h);
	equal = next[0] == a->output[0];
	while (made < a->output_n) {
		struct segment s = { .kv = &r->seq, .tokens = tokens, .rows = n + 1, .absorbed = true,
			.want_logits = n + 1 };
		size_t kept = r->seq.length;

		tokens[0] = next[rows - 1];
		draft(r, h, next, rows, tokens + 1, n);
		step(r, &s);
		run->steps++;
		for (rows = 0; rows <= n && made < a->output_n; rows++) {
			next[rows] = s.argmax[rows];
			equal += next[rows] == a->output[made++];
			if (rows == n)
				continue;
			run->drafted++;
			if (next[rows] != tokens[rows + 1]) {
				rows++;
				break;
			}
			run->accepted++;
		}
		r->seq.length = kept + rows;
		memcpy(h, s.hidden, rows * hidden * sizeof(*h));
	}
	run->equal += equal == a->output_n;
	free(h);
}

static void test_speculation(struct model *m, const struct answer *answers, const char *name)
{
	struct engine_config c = { .arith = ARITH_F32, .threads = 2, .max_rows = 512, .max_segs = 4,
		.max_logits = MOST_DRAFTS + 1, .mtp = true };
	struct rig r;

	rig_open(&r, m, &c);
	for (size_t n = 1; n <= MOST_DRAFTS; n++) {
		struct run run = { 0 };

		for (size_t i = 0; i < PROBLEMS; i++)
			speculate(&r, &answers[i], n, &run);
		tap_ok(run.equal == PROBLEMS && run.accepted > run.drafted / 2,
			"%s, %zu drafts: %zu of %d answers equal, %zu of %zu accepted in %zu steps", name, n, run.equal,
			PROBLEMS, run.accepted, run.drafted, run.steps);
	}
	rig_close(&r);
}

/* Drafts at every position of the golden answers, as the goldens count them. */
static void test_hits(struct model *m, const struct answer *answers, const char *name)
{
	struct engine_config c = { .arith = ARITH_F32, .threads = 2, .max_rows = 512, .max_segs = 4, .mtp = true };
	float *h = mem_array(m->config.hidden, sizeof(*h));
	size_t equal = 0, hits = 0, drafts = 0;
	struct rig r;

	rig_open(&r, m, &c);
	for (size_t i = 0; i < PROBLEMS; i++) {
		const struct answer *a = &answers[i];
		size_t hit = 0;

		feed(&r, a->prompt, a->prompt_n, i % 2 ? 7 : 1024, h);
		for (size_t k = 0; k + 1 < a->output_n; k++) {
			struct segment s = { .kv = &r.seq, .tokens = &a->output[k], .rows = 1, .absorbed = true };
			uint32_t guess;

			draft(&r, h, &a->output[k], 1, &guess, 1);
			hit += guess == a->output[k + 1];
			step(&r, &s);
			memcpy(h, s.hidden, m->config.hidden * sizeof(*h));
		}
		equal += hit == a->hits && a->output_n - 1 == a->drafts;
		hits += hit;
		drafts += a->drafts;
	}
	tap_ok(equal == PROBLEMS, "%s: hits of %zu of %d answers are the golden's, %zu of %zu", name, equal, PROBLEMS,
		hits, drafts);
	free(h);
	rig_close(&r);
}

/* Wrong drafts: rows verified together have the bits of single steps, before and after they are taken back. */
static void test_rows(struct model *m, const struct answer *a, const char *set, enum arith arith)
{
	struct engine_config c = { .arith = arith, .threads = 2, .kernels = set, .max_rows = 512, .max_segs = 4,
		.max_logits = MOST_DRAFTS, .mtp = true };
	size_t vocab = m->config.vocab, equal = 0;
	float *h = mem_array(m->config.hidden, sizeof(*h)), *want = mem_array(20 * vocab, sizeof(*want));
	struct rig r;

	rig_open(&r, m, &c);
	feed(&r, a->prompt, a->prompt_n, 1024, h);
	for (size_t k = 0; k < 20; k++) {
		struct segment s = { .kv = &r.seq, .tokens = &a->output[k], .rows = 1, .absorbed = true,
			.want_logits = 1 };

		step(&r, &s);
		memcpy(want + k * vocab, s.logits, vocab * sizeof(*want));
	}
	feed(&r, a->prompt, a->prompt_n, 5, h);
	for (size_t k = 0; k < 20; k++) {
		uint32_t tokens[MOST_DRAFTS];
		size_t right = 1 + k % MOST_DRAFTS; /* so many of the rows have the right token */
		struct segment s = { .kv = &r.seq, .tokens = tokens, .rows = MOST_DRAFTS, .absorbed = true,
			.want_logits = MOST_DRAFTS };

		right = right < 20 - k ? right : 20 - k;
		for (size_t i = 0; i < MOST_DRAFTS; i++)
			tokens[i] = i < right ? a->output[k + i] : (uint32_t)((a->output[k] + 1 + i) % vocab);
		step(&r, &s);
		for (size_t i = 0; i < right; i++)
			equal += memcmp(s.logits + i * vocab, want + (k + i) * vocab, vocab * sizeof(*want)) == 0;
		r.seq.length -= MOST_DRAFTS - right;
		k += right - 1;
	}
	tap_ok(equal == 20, "%s %s: %zu of 20 rows of logits, verified among wrong drafts = one at a time",
		engine_kernels(r.e), arith == ARITH_F32 ? "float32" : "bf16", equal);
	free(want);
	free(h);
	rig_close(&r);
}

static void test_model(const char *dir, const char *name)
{
	static struct answer answers[PROBLEMS];
	static const char *const sets[] = { NULL, "avx2", "scalar" };
	struct model *m;
	struct ds_err err;

	read_answers(name, answers);
	if (model_open(&m, dir, &err))
		tap_bail("%s", err.text);
	if (!tap_slow()) {
		test_hits(m, answers, name);
		test_speculation(m, answers, name);
	}
	for (size_t i = 0; i < ARRAY_LEN(sets); i++)
		for (enum arith arith = ARITH_BF16; arith <= ARITH_F32; arith++)
			test_rows(m, &answers[3], sets[i], arith);
	model_close(m);
}

int main(void)
{
	char path[1000];

	test_model("examples/models/tiny-r1", "fp8");
	if (tap_shared(path, "models/tiny-r1-bf16"))
		test_model(path, "bf16");
	else
		tap_skip("shared models/tiny-r1-bf16 is not here");
	return tap_done();
}

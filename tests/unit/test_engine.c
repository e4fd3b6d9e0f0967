/*
 * Law 2 at the engine: logits of a sequence are the same bits whatever shares its steps, however its prompt is cut,
 * with one thread or two; for every kernel set and both arithmetics, on the FP8 example model and on a BF16 one without
 * q_lora.
 */
#include "base/random.h"
#include "golden.h"

enum { SEQS = 12, STEPS = 6 };

struct trace { float *logits[SEQS]; }; /* [STEPS, vocab] each */

static size_t prompt_length(size_t i)
{
	static const size_t lengths[SEQS] = { 1, 2, 63, 64, 65, 130, 7, 200, 31, 128, 3, 90 };

	return lengths[i];
}

static void make_prompt(uint32_t *ids, size_t i, size_t vocab)
{
	for (size_t t = 0; t < prompt_length(i); t++)
		ids[t] = (uint32_t)(random_bits(i, t) % vocab);
}

static void must(bool ok)
{
	if (!ok)
		tap_bail("step failed");
}

/* Each sequence alone, prompts in one piece. */
static void run_alone(struct rig *r, struct trace *t)
{
	size_t vocab = r->m->config.vocab;
	uint32_t ids[256];
	struct ds_err err;

	for (size_t i = 0; i < SEQS; i++) {
		struct segment s = { .kv = &r->seq, .tokens = ids, .rows = prompt_length(i), .want_logits = true };

		rig_reset(r);
		make_prompt(ids, i, vocab);
		t->logits[i] = mem_array(STEPS * vocab, sizeof(float));
		for (size_t n = 0; n < STEPS; n++) {
			must(kv_seq_reserve(&r->seq, r->pool, r->seq.length + s.rows) &&
				engine_step(r->e, &s, 1, &err) == 0);
			memcpy(t->logits[i] + n * vocab, s.logits, vocab * sizeof(float));
			ids[0] = s.argmax[0];
			s.rows = 1;
			s.absorbed = true;
		}
	}
}

struct mixed { struct kv_seq kv; uint32_t ids[256]; size_t fed, made; uint32_t token; };

/* The segment a sequence adds to the next step: a chunk of its prompt, or its last token. */
static void next_segment(struct mixed *m, size_t length, size_t chunk, struct segment *s)
{
	size_t left = length - m->fed;

	*s = (struct segment){ .kv = &m->kv };
	if (left) {
		s->rows = left < chunk ? left : chunk;
		s->tokens = m->ids + m->fed;
		s->want_logits = s->rows == left;
	} else {
		s->rows = 1;
		s->tokens = &m->token;
		s->absorbed = true;
		s->want_logits = 1;
	}
}

/* All together: prompts of some in chunks while others decode. */
static size_t run_mixed(struct rig *r, const struct trace *t, size_t chunk)
{
	static struct mixed all[SEQS];
	size_t vocab = r->m->config.vocab, equal = 0, open = SEQS;
	struct segment segs[SEQS];
	struct ds_err err;

	memset(all, 0, sizeof(all));
	for (size_t i = 0; i < SEQS; i++)
		make_prompt(all[i].ids, i, vocab);
	while (open) {
		size_t n = 0, who[SEQS];

		for (size_t i = 0; i < SEQS; i++)
			if (all[i].made < STEPS) {
				next_segment(&all[i], prompt_length(i), chunk, &segs[n]);
				must(kv_seq_reserve(&all[i].kv, r->pool, all[i].kv.length + segs[n].rows));
				who[n++] = i;
			}
		must(engine_step(r->e, segs, n, &err) == 0);
		for (size_t k = 0; k < n; k++) {
			struct mixed *m = &all[who[k]];

			m->fed += segs[k].absorbed ? 0 : segs[k].rows;
			if (!segs[k].want_logits)
				continue;
			equal += memcmp(segs[k].logits, t->logits[who[k]] + m->made * vocab,
				vocab * sizeof(float)) == 0;
			m->token = segs[k].argmax[0];
			open -= ++m->made == STEPS;
		}
	}
	for (size_t i = 0; i < SEQS; i++)
		kv_seq_clear(&all[i].kv, r->pool);
	return equal;
}

static void test_set(struct model *m, const char *name, const char *set, enum arith arith)
{
	struct engine_config c = { .arith = arith, .threads = 1, .kernels = set, .max_rows = 1024, .max_segs = SEQS };
	static const size_t chunks[] = { 256, 64, 1, 7 };
	struct trace t;
	struct rig one, two;

	rig_open(&one, m, &c);
	c.threads = 2;
	rig_open(&two, m, &c);
	run_alone(&one, &t);
	/* The scalar set takes minutes for all of them. */
	for (size_t i = strcmp(engine_kernels(one.e), "scalar") == 0 ? 3 : 0; i < ARRAY_LEN(chunks); i++) {
		size_t equal;

		if (tap_slow() && chunks[i] != 7)
			continue;
		equal = run_mixed(&two, &t, chunks[i]);

		tap_ok(equal == SEQS * STEPS,
			"%s, %s, %s: %zu of %d rows of logits, alone with 1 thread = together with 2, chunks of %zu",
			name, engine_kernels(one.e), arith == ARITH_F32 ? "float32" : "bf16", equal, SEQS * STEPS,
				chunks[i]);
	}
	for (size_t i = 0; i < SEQS; i++)
		free(t.logits[i]);
	rig_close(&one);
	rig_close(&two);
}

static void test_model(const char *dir, const char *name)
{
	static const char *const sets[] = { "avx512", "avx2", "scalar" };
	struct kern_stream *stream;
	struct model *m;
	struct ds_err err;

	if (model_open(&m, dir, &err))
		tap_bail("%s", err.text);
	for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
		if (kern_stream_new(&stream, 1, sets[i], &err)) {
			tap_skip("%s", err.text);
			continue;
		}
		kern_stream_free(stream);
		test_set(m, name, sets[i], ARITH_BF16);
		if (strcmp(sets[i], "scalar") && !tap_slow())
			test_set(m, name, sets[i], ARITH_F32);
		if (tap_slow())
			break;
	}
	model_close(m);
}

int main(void)
{
	char path[1000];

	test_model("examples/models/tiny-r1", "tiny-r1 FP8");
	tap_unpack(path, "v2lite-tiny");
	test_model(path, "v2lite-tiny BF16");
	return tap_done();
}

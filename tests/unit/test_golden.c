/*
 * Every tensor of the float32 goldens (tests/golden/README: shared data's golden/README) within its stated tolerance,
 * for the scalar and the fastest kernels, in the expanded and in the absorbed form; the greedy paths are equal.
 * A fault of others: right at position 0, wrong behind it; so all positions of 200 are compared, with YaRN, too.
 */
#include "golden.h"

static const char *const plain[] = { "v3-tiny", "v2lite-tiny", "v3-norope-tiny", "v2-group-tiny" };
static const char *const prompts[] = { "p1", "p7", "p64", "p200" };

static const char *what; /* model, set and form, for messages */

/* got has all `all` rows; the golden has all of them, or those at PROMPT.positions. */
static void compare(const struct golden *g, const char *prefix, const char *name, const float *got, size_t all,
	size_t stride)
{
	size_t rows, cols, prows, pcols = 0;
	char full[100], pos_name[60];
	const int32_t *pos = NULL;
	const float *want;
	double worst = 0.0, tol;

	snprintf(full, sizeof(full), "%s.%s", prefix, name);
	want = golden_get(&g->file, full, &rows, &cols);
	snprintf(pos_name, sizeof(pos_name), "%s.positions", prefix);
	if (rows != all && rows != 1)
		pos = golden_get(&g->file, pos_name, &prows, &pcols);
	if (pos && pcols != rows)
		tap_bail("%s: %zu rows, %zu positions", full, rows, pcols);
	for (size_t r = 0; r < rows; r++) {
		size_t at = pos ? (size_t)pos[r] : rows == 1 ? all - 1 : r;
		double d = max_diff(got + at * stride, want + r * cols, cols);

		worst = d > worst ? d : worst;
	}
	tol = golden_atol(g, full);
	tap_ok(worst <= tol, "%s: %s is off by %.2g, allowed %.2g", what, full, worst, tol);
}

static double weight_of(const int32_t *ids, const float *w, size_t n, int32_t id)
{
	for (size_t i = 0; i < n; i++)
		if (ids[i] == id)
			return (double)w[i];
	return NAN;
}

/* Expert ids as sets, weights by expert. */
static void compare_choice(const struct golden *g, const struct rig *r, const char *prefix, size_t layer, size_t skip)
{
	size_t rows, k, got_rows = 0, got_k = 0;
	char name[60], full[100];
	const int32_t *ids, *got_ids;
	const float *w, *got_w;
	double worst = 0.0;

	snprintf(full, sizeof(full), "%s.router.%zu.ids", prefix, layer);
	ids = golden_get(&g->file, full, &rows, &k);
	snprintf(name, sizeof(name), "router.%zu.ids", layer);
	got_ids = (const int32_t *)record_get(&r->rec, name, &got_rows, &got_k) + skip * k;
	snprintf(full, sizeof(full), "%s.router.%zu.weights", prefix, layer);
	w = golden_get(&g->file, full, &rows, &k);
	snprintf(name, sizeof(name), "router.%zu.weights", layer);
	got_w = (const float *)record_get(&r->rec, name, &got_rows, &got_k) + skip * k;
	for (size_t i = 0; i < rows; i++)
		for (size_t j = 0; j < k; j++) {
			double d = fabs(weight_of(got_ids + i * k, got_w + i * k, k,
				ids[i * k + j]) - (double)w[i * k + j]);

			worst = d > worst || isnan(d) ? (isnan(d) ? INFINITY : d) : worst;
		}
	tap_ok(got_rows == rows + skip && got_k == k && worst <= golden_atol(g, full),
		"%s: %s.router.%zu ids are the same sets, weights off by %.2g", what, prefix, layer, worst);
}

static void compare_cache(const struct golden *g, const struct rig *r, const char *prefix, size_t layer, size_t skip)
{
	float *rows = cache_rows(&r->seq, r->pool, layer);
	size_t all = r->seq.length - skip;
	char name[60];

	snprintf(name, sizeof(name), "kv.%zu.c", layer);
	compare(g, prefix, name, rows + skip * r->pool->dim, all, r->pool->dim);
	snprintf(name, sizeof(name), "kv.%zu.pe", layer);
	compare(g, prefix, name, rows + skip * r->pool->dim + r->m->config.kv_lora, all, r->pool->dim);
	free(rows);
}

/* All points that golden and engine share; skip: rows of the prompt before a decode. */
static void compare_points(const struct golden *g, const struct rig *r, const char *prefix, size_t skip)
{
	for (size_t i = 0; i < r->rec.n; i++) {
		const char *name = r->rec.v[i].name;
		char full[100];

		snprintf(full, sizeof(full), "%s.%s", prefix, name);
		if (r->rec.v[i].type != DT_F32 || strstr(name, ".weights") || !st_find(&g->file, full))
			continue;
		compare(g, prefix, name, (const float *)r->rec.v[i].data + skip * r->rec.v[i].cols,
			r->rec.v[i].rows - skip, r->rec.v[i].cols);
	}
	for (size_t l = 0; l < r->m->config.layers; l++) {
		char full[100];

		snprintf(full, sizeof(full), "%s.router.%zu.ids", prefix, l);
		if (st_find(&g->file, full))
			compare_choice(g, r, prefix, l, skip);
		snprintf(full, sizeof(full), "%s.kv.%zu.c", prefix, l);
		if (st_find(&g->file, full))
			compare_cache(g, r, prefix, l, skip);
	}
}

static void run_prompt(const struct golden *g, struct rig *r, const char *prompt, bool absorbed)
{
	size_t n, last = r->m->config.vocab;
	uint32_t *ids = golden_prompt(g, prompt, &n);
	float *whole = mem_array(last, sizeof(*whole));
	char name[60];

	rig_reset(r);
	rig_feed(r, ids, n, n, absorbed);
	compare_points(g, r, prompt, 0);
	memcpy(whole, r->logits, last * sizeof(*whole));
	/* One token a step: logits of every row, and the same bits at the end (law 2). */
	rig_reset(r);
	rig_feed(r, ids, n, 1, absorbed);
	snprintf(name, sizeof(name), "%s.logits", prompt);
	if (st_find(&g->file, name))
		compare(g, prompt, "logits", r->logits, n, last);
	tap_ok(memcmp(whole, r->logits + (n - 1) * last, last * sizeof(*whole)) == 0,
		"%s: %s in chunks of one token gives the same bits", what, prompt);
	free(whole);
	free(ids);
}

/* The greedy path: expanded prompt, then absorbed steps fed with the engine's own choices. */
static void run_decode(const struct golden *g, struct rig *r)
{
	json_t *d = json_object_get(g->json, "decode");
	size_t n, rows, steps, vocab = r->m->config.vocab, equal = 0;
	uint32_t *ids = golden_prompt(g, json_string_value(json_object_get(d, "prefill")), &n);
	const int32_t *tokens = golden_get(&g->file, "decode.tokens", &rows, &steps);

	rig_reset(r);
	rig_feed(r, ids, n, n, false);
	for (size_t i = 0; i < steps; i++) {
		const float *row = r->logits + i * vocab;
		uint32_t best = 0;

		for (uint32_t t = 1; t < vocab; t++)
			best = row[t] > row[best] ? t : best;
		equal += best == (uint32_t)tokens[i];
		if (i + 1 < steps)
			rig_feed(r, &best, 1, 1, true);
	}
	tap_ok(equal == steps, "%s: greedy path, %zu of %zu tokens equal", what, equal, steps);
	compare(g, "decode", "logits", r->logits, steps, vocab);
	compare_points(g, r, "decode", n);
	free(ids);
}

static void run_model(const char *golden, const char *checkpoint, const char *set, bool dequant)
{
	struct engine_config c = { .arith = ARITH_F32, .dequant = dequant, .threads = 2, .kernels = set,
		.max_rows = 256, .max_segs = 4 };
	char path[1000], label[200];
	struct ds_err err;
	struct golden g;
	struct model *m;
	struct rig r;

	golden_open(&g, golden);
	tap_unpack(path, checkpoint);
	if (model_open(&m, path, &err))
		tap_bail("%s", err.text);
	for (int absorbed = 0; absorbed < 2; absorbed++) {
		rig_open(&r, m, &c);
		snprintf(label, sizeof(label), "%s, %s, %s", golden, engine_kernels(r.e), absorbed ? "absorbed"
			: "expanded");
		what = label;
		for (size_t i = 0; i < ARRAY_LEN(prompts); i++)
			run_prompt(&g, &r, prompts[i], absorbed);
		if (!absorbed)
			run_decode(&g, &r);
		rig_close(&r);
	}
	model_close(m);
	golden_close(&g);
}

int main(void)
{
	static const char *const sets[] = { "avx512", "avx2", "scalar" };

	for (size_t s = 0; s < ARRAY_LEN(sets); s++) {
		struct kern_stream *stream;
		struct ds_err err;

		if (kern_stream_new(&stream, 1, sets[s], &err)) {
			tap_skip("%s", err.text);
			continue;
		}
		kern_stream_free(stream);
		for (size_t i = 0; i < ARRAY_LEN(plain); i++)
			run_model(plain[i], plain[i], sets[s], false);
		run_model("v3-tiny-fp8/dequant", "v3-tiny-fp8", sets[s], true);
		if (tap_slow())
			break;
	}
	return tap_done();
}

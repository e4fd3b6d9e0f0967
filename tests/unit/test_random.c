/* Random models compute: activations of the order of one, logits with an opinion, experts all in use. */
#include <math.h>

#include "base/mem.h"
#include "engine/engine.h"
#include "model/make.h"
#include "tests/unit/tap.h"

enum { PROMPT = 48, MAX_EXPERTS = 64 };

struct seen {
	double largest_rms, least_rms;
	size_t load[MAX_EXPERTS];
	bool finite;
};

static void tap(void *ctx, const struct tap_tensor *t)
{
	struct seen *s = ctx;
	const float *x = t->data;
	const uint32_t *ids = t->data;
	size_t rows = t->rows, cols = t->cols;

	if (!strcmp(t->point, "router.ids")) {
		for (size_t i = 0; i < rows * cols; i++)
			s->load[ids[i] % MAX_EXPERTS]++;
		return;
	}
	if (t->type != DT_F32 || strcmp(t->point, "out"))
		return;
	for (size_t r = 0; r < rows; r++) {
		double sum = 0;

		for (size_t c = 0; c < cols; c++) {
			s->finite &= isfinite(x[r * cols + c]) != 0;
			sum += (double)x[r * cols + c] * x[r * cols + c];
		}
		sum = sqrt(sum / (double)cols);
		s->largest_rms = fmax(s->largest_rms, sum);
		s->least_rms = fmin(s->least_rms, sum);
	}
}

static void run(const struct model *m, const char *what)
{
	struct engine_config ec = { .arith = ARITH_BF16, .threads = 1, .max_rows = PROMPT, .max_segs = 1 };
	struct seen s = { .least_rms = 1e30, .finite = true };
	uint32_t tokens[PROMPT];
	struct engine *e;
	struct kv_pool *pool;
	struct kv_seq kv = { .pages = NULL };
	struct ds_err err = { 0 };
	struct segment seg = { .kv = &kv, .tokens = tokens, .rows = PROMPT, .want_logits = true };
	double sum = 0, sq = 0, sd;
	size_t used = 0;

	for (size_t i = 0; i < PROMPT; i++)
		tokens[i] = (uint32_t)(i * 37 % m->config.vocab);
	if (engine_new(&e, m, &ec, &err) || engine_kv_pool(e, 1 << 24, &pool, &err))
		tap_bail("%s", err.text);
	engine_set_tap(e, tap, &s);
	if (!kv_seq_reserve(&kv, pool, PROMPT) || engine_step(e, &seg, 1, &err))
		tap_bail("%s", err.text);
	for (size_t i = 0; i < m->config.vocab; i++) {
		sum += seg.logits[i];
		sq += (double)seg.logits[i] * seg.logits[i];
		s.finite &= isfinite(seg.logits[i]) != 0;
	}
	sum /= (double)m->config.vocab;
	sd = sqrt(sq / (double)m->config.vocab - sum * sum);
	for (size_t i = 0; i < MAX_EXPERTS; i++)
		used += s.load[i] > 0;
	tap_ok(s.finite && s.least_rms > 0.1 && s.largest_rms < 300, "%s: activations are finite, RMS %.2f to %.2f",
		what, s.least_rms, s.largest_rms);
	tap_ok(sd > 1 && sd < 20, "%s: logits have a standard deviation of %.2f", what, sd);
	tap_ok(used >= m->config.experts * 3 / 4, "%s: %zu of %zu experts are in use", what, used, m->config.experts);
	kv_seq_clear(&kv, pool);
	kv_pool_free(pool);
	engine_free(e);
}

int main(void)
{
	static const char *const like[] = { "v3-tiny", "v3-norope-tiny", "v2lite-tiny", "v2-group-tiny" };
	static const struct {
		enum dtype type;
		const char *name;
	} types[] = { { DT_BF16, "BF16" }, { DT_F8_E4M3, "FP8" }, { DT_F32, "F32" } };
	char dir[1000], from[200], out[1100], what[300], command[1200];

	snprintf(dir, sizeof(dir), "%s/random-XXXXXX", tap_build());
	if (!mkdtemp(dir))
		tap_bail("cannot make %s", dir);
	for (size_t i = 0; i < ARRAY_LEN(like); i++) {
		for (size_t k = 0; k < ARRAY_LEN(types); k++) {
			struct make_options o = { .like = from,
				.out = out,
				.layers = 6,
				.dtype = types[k].type,
				.seed = i,
				.shard = 1 << 22 };
			struct make_plan p;
			struct model *m;
			struct ds_err err = { 0 };

			snprintf(from, sizeof(from), "tests/golden/%s", like[i]);
			snprintf(out, sizeof(out), "%s/%s-%s", dir, like[i], types[k].name);
			snprintf(what, sizeof(what), "%s as %s", like[i], types[k].name);
			if (make_model(&o, &p, &err) || model_open(&m, out, &err))
				tap_bail("%s", err.text);
			run(m, what);
			model_close(m);
		}
	}
	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	if (system(command))
		tap_diag("cannot remove %s", dir);
	return tap_done();
}

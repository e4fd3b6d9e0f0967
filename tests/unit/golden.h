/*
 * Reading tests/golden: tensors by name, tolerances from golden.json, and a recorder of what an engine shows.
 */
#ifndef DS_TESTS_GOLDEN_H
#define DS_TESTS_GOLDEN_H

#include <jansson.h>
#include <math.h>

#include "base/mem.h"
#include "engine/internal.h"
#include "model/safetensors.h"
#include "tap.h"

struct golden {
	char name[100];
	struct st_file file;
	json_t *json;
};

TAP_USED static void golden_open(struct golden *g, const char *name)
{
	struct ds_err err;
	char path[300];

	memset(g, 0, sizeof(*g));
	snprintf(g->name, sizeof(g->name), "%s", name);
	snprintf(path, sizeof(path), "tests/golden/%s/golden.safetensors", name);
	if (st_open(&g->file, path, &err))
		tap_bail("%s", err.text);
	snprintf(path, sizeof(path), "tests/golden/%s/golden.json", name);
	g->json = json_load_file(path, 0, NULL);
	if (!g->json)
		tap_bail("cannot read %s", path);
}

TAP_USED static void golden_close(struct golden *g)
{
	st_close(&g->file);
	json_decref(g->json);
}

TAP_USED static const struct st_tensor *st_find(const struct st_file *f, const char *name)
{
	for (size_t i = 0; i < f->count; i++)
		if (f->tensors[i].name_len == strlen(name) && memcmp(f->tensors[i].name, name, strlen(name)) == 0)
			return &f->tensors[i];
	return NULL;
}

/* A tensor that must be there; [rows, cols] (1-d: rows = 1). */
TAP_USED static const void *golden_get(const struct st_file *f, const char *name, size_t *rows, size_t *cols)
{
	const struct st_tensor *t = st_find(f, name);

	if (!t)
		tap_bail("golden tensor '%s' is missing in %s", name, f->path);
	*rows = t->rank == 2 ? (size_t)t->shape[0] : 1;
	*cols = (size_t)t->shape[t->rank - 1];
	return t->data;
}

/* What golden.json says of a tensor. */
TAP_USED static json_t *golden_note(const struct golden *g, const char *name)
{
	return json_object_get(json_object_get(g->json, "tensors"), name);
}

TAP_USED static double golden_atol(const struct golden *g, const char *name)
{
	json_t *a = json_object_get(golden_note(g, name), "atol");

	if (!a)
		tap_bail("no atol for '%s'", name);
	return json_number_value(a);
}

/* A prompt of golden.json, to be freed. */
TAP_USED static uint32_t *golden_prompt(const struct golden *g, const char *prompt, size_t *n)
{
	json_t *list = json_object_get(json_object_get(g->json, "prompts"), prompt);
	uint32_t *ids;

	*n = json_array_size(list);
	ids = mem_array(*n, sizeof(*ids));
	for (size_t i = 0; i < *n; i++)
		ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
	return ids;
}

TAP_USED static double max_diff(const float *a, const float *b, size_t n)
{
	double worst = 0.0;

	for (size_t i = 0; i < n; i++) {
		double d = fabs((double)a[i] - (double)b[i]);

		if (!(d <= worst)) /* a NaN is the worst */
			worst = isnan(d) ? INFINITY : d;
	}
	return worst;
}

TAP_USED static double rel_rms(const float *a, const float *b, size_t n)
{
	double d = 0.0, s = 0.0;

	for (size_t i = 0; i < n; i++) {
		d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
		s += (double)b[i] * (double)b[i];
	}
	return d == 0.0 ? 0.0 : sqrt(d / s);
}

/* ---- what an engine showed ---- */

enum { REC_MAX = 128 };

struct record {
	struct { char name[40]; enum dtype type; size_t rows, cols; void *data; } v[REC_MAX];
	size_t n;
};

/* An engine_tap: rows of later steps are appended to those of earlier ones. */
TAP_USED static void record_tap(void *ctx, const struct tap_tensor *t)
{
	struct record *r = ctx;
	size_t i, bytes = t->rows * t->cols * 4;
	char name[40];

	if (strcmp(t->point, "logits") == 0)
		return;
	if (strncmp(t->point, "router.", 7) == 0)
		snprintf(name, sizeof(name), "router.%zu.%s", t->layer, t->point + 7);
	else if (strcmp(t->point, "embed") == 0 || strcmp(t->point, "final") == 0)
		snprintf(name, sizeof(name), "h.%s", t->point);
	else
		snprintf(name, sizeof(name), "h.%zu.%s", t->layer, t->point);
	for (i = 0; i < r->n && strcmp(r->v[i].name, name) != 0; i++)
		;
	if (i == r->n) {
		if (i == REC_MAX)
			tap_bail("too many points");
		memset(&r->v[r->n++], 0, sizeof(r->v[0]));
		snprintf(r->v[i].name, sizeof(r->v[i].name), "%s", name);
		r->v[i].type = t->type;
		r->v[i].cols = t->cols;
	}
	r->v[i].data = realloc(r->v[i].data, r->v[i].rows * t->cols * 4 + bytes);
	memcpy((char *)r->v[i].data + r->v[i].rows * t->cols * 4, t->data, bytes);
	r->v[i].rows += t->rows;
}

TAP_USED static const void *record_get(const struct record *r, const char *name, size_t *rows, size_t *cols)
{
	for (size_t i = 0; i < r->n; i++)
		if (strcmp(r->v[i].name, name) == 0) {
			*rows = r->v[i].rows;
			*cols = r->v[i].cols;
			return r->v[i].data;
		}
	return NULL;
}

TAP_USED static void record_clear(struct record *r)
{
	for (size_t i = 0; i < r->n; i++)
		free(r->v[i].data);
	r->n = 0;
}

/* Rows of the cache as float32: [length, lora + rope] of a layer. */
TAP_USED static float *cache_rows(const struct kv_seq *s, const struct kv_pool *p, size_t layer)
{
	float *out = mem_array(s->length * p->dim, sizeof(*out));

	for (size_t t = 0; t < s->length; t++) {
		const unsigned char *page = s->pages[t / KV_BLOCK];
		size_t at = (layer * KV_BLOCK + t % KV_BLOCK) * p->dim;

		for (size_t i = 0; i < p->dim; i++)
			out[t * p->dim + i] = p->type == DT_F32 ? ((const float *)(const void *)page)[at + i]
				: bf16_to_f32(((const uint16_t *)(const void *)page)[at + i]);
	}
	return out;
}

/* ---- a model with an engine and memory, and runs over a prompt ---- */

struct rig {
	struct model *m;
	struct engine *e;
	struct kv_pool *pool;
	struct kv_seq seq;
	struct record rec;
	float *logits;       /* [rows that wanted them, vocab] */
	size_t logit_rows;
};

TAP_USED static void rig_open(struct rig *r, struct model *m, const struct engine_config *c)
{
	struct ds_err err;

	memset(r, 0, sizeof(*r));
	r->m = m;
	if (engine_new(&r->e, m, c, &err) || engine_kv_pool(r->e, 64 << 20, &r->pool, &err))
		tap_bail("%s", err.text);
	engine_set_tap(r->e, record_tap, &r->rec);
}

TAP_USED static void rig_reset(struct rig *r)
{
	record_clear(&r->rec);
	free(r->logits);
	r->logits = NULL;
	r->logit_rows = 0;
	kv_seq_clear(&r->seq, r->pool);
}

TAP_USED static void rig_close(struct rig *r)
{
	rig_reset(r);
	kv_pool_free(r->pool);
	engine_free(r->e);
}

/* Feeds ids in chunks; each step's last row gives logits. */
TAP_USED static void rig_feed(struct rig *r, const uint32_t *ids, size_t n, size_t chunk, bool absorbed)
{
	size_t vocab = r->m->config.vocab;
	struct ds_err err;

	for (size_t at = 0, take; at < n; at += take) {
		struct segment s = { .kv = &r->seq, .tokens = ids + at, .absorbed = absorbed, .want_logits = true };

		take = chunk < n - at ? chunk : n - at;
		s.rows = take;
		if (!kv_seq_reserve(&r->seq, r->pool, r->seq.length + take) || engine_step(r->e, &s, 1, &err))
			tap_bail("step failed: %s", err.text);
		r->logits = realloc(r->logits, (r->logit_rows + 1) * vocab * sizeof(float));
		memcpy(r->logits + r->logit_rows++ * vocab, s.logits, vocab * sizeof(float));
	}
}

#endif

#include "model/make.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/file.h"
#include "model/write.h"

struct item {
	struct weight w;
	size_t tensor;         /* in the writer's list; an FP8 weight's scales follow it */
	enum dtype type;
};

struct maker {
	const struct make_options *o;
	struct make_plan *plan;
	struct writer w;
	struct item *items;
	size_t count, cap;
	struct buf config;
	struct ds_err *err;
};

/* ---- plan ---- */

static int add_item(struct maker *m, const struct item *it)
{
	struct item *p = mem_more(m->items, &m->cap, m->count, sizeof *p);

	if (!p)
		return err_nomem(m->err, (m->count + 1) * sizeof *p, "the list of tensors");
	m->items = p;
	m->items[m->count++] = *it;
	return 0;
}

static int plan_weight(void *arg, const struct weight *w)
{
	struct maker *m = arg;
	bool vector = w->kind == WEIGHT_NORM || w->kind == WEIGHT_BIAS;
	struct item it = { .w = *w, .tensor = m->w.count, .type = DT_BF16 };
	struct out_tensor t, scale;
	int rc;

	if (w->optional)
		return 0; /* MTP layers share the main model's embedding and head */
	if (w->kind == WEIGHT_BIAS || m->plan->dtype == DT_F32)
		it.type = DT_F32;
	else if (m->plan->dtype == DT_F8_E4M3 && w->kind == WEIGHT_LINEAR)
		it.type = DT_F8_E4M3;
	out_matrix(&t, w->name, it.type, vector ? 0 : w->rows, w->cols);
	rc = add_item(m, &it);
	if (!rc)
		rc = writer_add(&m->w, &t, m->err);
	if (rc || it.type != DT_F8_E4M3)
		return rc;
	out_scale(&scale, &t);
	return writer_add(&m->w, &scale, m->err);
}

static int plan_all(struct maker *m)
{
	struct config *c = &m->plan->config;
	struct model *shell;
	int rc = make_config(m->o, &m->config, c, m->err);

	if (rc)
		return rc;
	m->plan->dtype = m->o->dtype != DT_NONE ? m->o->dtype : c->fp8 ? DT_F8_E4M3 : DT_BF16;
	shell = model_shell(c, "", c->mtp_layers, m->err);
	if (!shell)
		return m->err->code;
	rc = layout_walk(shell, plan_weight, m);
	model_free_shell(shell);
	if (rc)
		return rc;
	writer_plan(&m->w, m->o->shard);
	m->plan->tensors = m->w.count;
	m->plan->shards = m->w.shards;
	m->plan->bytes = m->w.bytes;
	return 0;
}

/* ---- writing ---- */

/* Scratch for one band of rows. */
struct band {
	uint16_t *index;
	void *out;
	float *scale;
};

static void band_free(struct band *b)
{
	free(b->index);
	free(b->out);
	free(b->scale);
}

static int band_alloc(const struct maker *m, struct band *b)
{
	size_t cols = 1;

	for (size_t i = 0; i < m->count; i++)
		cols = m->items[i].w.cols > cols ? m->items[i].w.cols : cols;
	b->index = mem_array(MAKE_BAND * cols, sizeof *b->index);
	b->out = mem_array(MAKE_BAND * cols, sizeof(float));
	b->scale = mem_array(cols / FP8_BLOCK + 1, sizeof(float));
	if (b->index && b->out && b->scale)
		return 0;
	return err_nomem(m->err, MAKE_BAND * cols * 6, "rows of weights");
}

static int write_tensor(const struct maker *m, const struct make_source *src, const struct item *it,
	const struct out_file *f, const struct band *b)
{
	const struct out_tensor *t = &m->w.tensors[it->tensor];
	size_t blocks = (it->w.cols + FP8_BLOCK - 1) / FP8_BLOCK, row = it->w.cols * t->esize;
	int rc = 0;

	for (size_t r = 0; r < it->w.rows && !rc; r += MAKE_BAND) {
		size_t n = it->w.rows - r < MAKE_BAND ? it->w.rows - r : MAKE_BAND;

		make_rows(src, &it->w, m->o->seed, it->type, m->plan->config.ue8m0, r, n, b->index, b->out, b->scale);
		rc = writer_put(&m->w, f, t, (uint64_t)r * row, b->out, n * row, m->err);
		if (!rc && it->type == DT_F8_E4M3)
			rc = writer_put(&m->w, f, t + 1, r / FP8_BLOCK * blocks * sizeof(float), b->scale,
				blocks * sizeof(float), m->err);
	}
	return rc;
}

/* File s; *next: the first item not yet written. */
static int write_shard(const struct maker *m, const struct make_source *src, size_t s, const struct band *b,
	size_t *next)
{
	struct out_file f;
	int rc = writer_open(&m->w, s, &f, m->err);

	if (rc)
		return rc;
	for (; *next < m->count && m->w.tensors[m->items[*next].tensor].shard == s && !rc; ++*next)
		rc = write_tensor(m, src, &m->items[*next], &f, b);
	return writer_close(&f, rc, m->err);
}

static int copy_tokenizer(const struct maker *m)
{
	static const char *const names[] = { "tokenizer.json", "tokenizer_config.json", "generation_config.json" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct text t;
		/* only the first is needed */
		int rc = (i ? file_read_if_there : file_read)(m->o->tokenizer, names[i], 1 << 28, &t, m->err);

		if (rc)
			return rc;
		if (!t.p)
			continue;
		rc = writer_text(&m->w, names[i], t.p, t.n, m->err);
		file_free(&t);
		if (rc)
			return rc;
	}
	return 0;
}

static int write_all(const struct maker *m)
{
	struct make_source *src = mem_calloc(1, sizeof *src);
	struct band b = { NULL, NULL, NULL };
	size_t next = 0;
	int rc = src ? band_alloc(m, &b) : err_nomem(m->err, sizeof *src, "random values");

	if (!rc) {
		make_source_init(src);
		rc = writer_text(&m->w, "config.json", m->config.p, m->config.len, m->err);
	}
	if (!rc && m->o->tokenizer)
		rc = copy_tokenizer(m);
	for (size_t s = 0; s < m->w.shards && !rc; s++)
		rc = write_shard(m, src, s, &b, &next);
	band_free(&b);
	free(src);
	return rc;
}

int make_model(const struct make_options *o, struct make_plan *plan, struct ds_err *err)
{
	struct maker m = { .o = o, .plan = plan, .err = err,
		.w = { .out = o->out, .force = o->force, .stop = o->stop } };
	int rc;

	memset(plan, 0, sizeof *plan);
	rc = plan_all(&m);
	if (!rc && !o->dry_run) {
		rc = writer_begin(&m.w, err);
		if (!rc)
			rc = write_all(&m);
		if (!rc)
			rc = writer_finish(&m.w, err);
	}
	writer_free(&m.w);
	free(m.items);
	buf_free(&m.config);
	return rc;
}

#include "model/model.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "model/checkpoint.h"
#include "model/fingerprint.h"
#include "model/layout.h"

struct binder {
	struct model *m;
	struct ds_err *err;
};

static int refuse(const struct binder *b, const struct ckpt_tensor *e, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static int refuse(const struct binder *b, const struct ckpt_tensor *e, const char *fmt, ...)
{
	char why[200];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof why, fmt, ap);
	va_end(ap);
	return err_set(b->err, DS_DATA, "cannot use '%s': tensor '%.*s' %s", e->file->path, (int)e->t->name_len,
		e->t->name, why);
}

static void shape_text(char *out, size_t size, const struct st_tensor *t)
{
	size_t n = (size_t)snprintf(out, size, "[");

	for (uint32_t i = 0; i < t->rank && n < size; i++)
		n += (size_t)snprintf(out + n, size - n, "%s%llu", i ? "," : "", (unsigned long long)t->shape[i]);
	if (n < size)
		snprintf(out + n, size - n, "]");
}

static int check_shape(const struct binder *b, const struct ckpt_tensor *e, bool vector, size_t rows, size_t cols)
{
	const struct st_tensor *t = e->t;
	char has[200];

	if (vector ? t->rank == 1 && t->shape[0] == cols : t->rank == 2 && t->shape[0] == rows && t->shape[1] == cols)
		return 0;
	shape_text(has, sizeof has, t);
	if (vector)
		return refuse(b, e, "has shape %.100s, config.json makes it [%zu]", has, cols);
	return refuse(b, e, "has shape %.100s, config.json makes it [%zu,%zu]", has, rows, cols);
}

/* n bytes of its own, freed with the model. */
static void *new_copy(const struct binder *b, size_t n)
{
	struct model *m = b->m;
	void *p = mem_aligned(n ? n : 1), **list = mem_realloc(m->copies, m->copy_count + 1, sizeof(*list));

	if (list)
		m->copies = list;
	if (!p || !list) {
		free(p);
		err_nomem(b->err, n, "a tensor");
		return NULL;
	}
	m->copies[m->copy_count++] = p;
	return p;
}

/* The tensor's bytes where its type may be read: in place, or a copy where the file has it at an odd address. */
static const void *aligned_data(const struct binder *b, const struct ckpt_tensor *e)
{
	void *p;

	if ((uintptr_t)e->t->data % dtype_size(e->t->type) == 0)
		return e->t->data;
	p = new_copy(b, e->t->bytes);
	return p ? memcpy(p, e->t->data, e->t->bytes) : NULL;
}

static const float *widened_copy(const struct binder *b, const struct ckpt_tensor *e)
{
	size_t n = e->t->bytes / 2;
	float *p = new_copy(b, n * sizeof *p);

	for (size_t i = 0; p && i < n; i++) {
		uint16_t h;

		memcpy(&h, e->t->data + 2 * i, 2);
		p[i] = e->t->type == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
	}
	return p;
}

static int bind_bias(const struct binder *b, struct ckpt_tensor *e, const struct weight *w)
{
	if (e->t->type == DT_F32)
		*w->bias = aligned_data(b, e);
	else if (e->t->type == DT_BF16 || e->t->type == DT_F16)
		*w->bias = widened_copy(b, e);
	else
		return refuse(b, e, "is %s, want F32, BF16 or F16", e->t->type_name);
	return *w->bias ? 0 : b->err->code;
}

/* weight_scale_inv of an FP8 weight, wherever it lies. */
static int bind_scale(const struct binder *b, const struct ckpt_tensor *weight, struct mat *m)
{
	char name[160];
	size_t rows = (m->rows + FP8_BLOCK - 1) / FP8_BLOCK;
	int n = snprintf(name, sizeof name, "%.*s_scale_inv", (int)weight->t->name_len, weight->t->name), rc;
	struct ckpt_tensor *e = ckpt_find(b->m->files, name, (size_t)n);

	m->scale_ld = (m->cols + FP8_BLOCK - 1) / FP8_BLOCK;
	if (!e || !e->listed)
		return refuse(b, weight, "is F8_E4M3, but '%s' is missing", name);
	e->used = true;
	if (e->t->type != DT_F32)
		return refuse(b, e, "is %s, want F32", e->t->type_name);
	if ((rc = check_shape(b, e, false, rows, m->scale_ld)))
		return rc;
	m->scale = aligned_data(b, e);
	if (!m->scale)
		return b->err->code;
	for (size_t i = 0; i < rows * m->scale_ld; i++)
		if (!isfinite(m->scale[i]))
			return refuse(
				b, e, "has a scale that is not finite, at [%zu,%zu]", i / m->scale_ld, i % m->scale_ld);
	return 0;
}

static int bind_matrix(const struct binder *b, struct ckpt_tensor *e, const struct weight *w)
{
	struct mat *m = w->mat;
	enum dtype type = e->t->type;

	*m = (struct mat){ .rows = w->rows, .cols = w->cols, .ld = w->cols, .type = type };
	if (w->kind == WEIGHT_NORM && type == DT_F16) { /* the kernels' norms are F32 or BF16 */
		m->type = DT_F32;
		m->data = widened_copy(b, e);
		return m->data ? 0 : b->err->code;
	}
	if (type == DT_F8_E4M3 && w->kind != WEIGHT_LINEAR)
		return refuse(b, e, "is F8_E4M3, want F32, BF16 or F16");
	if (type == DT_F8_E4M3 && !b->m->config.fp8)
		return refuse(b, e, "is F8_E4M3, but config.json has no quantization_config");
	if (type != DT_F32 && type != DT_BF16 && type != DT_F16 && type != DT_F8_E4M3)
		return refuse(b, e, "is %s, want F32, BF16, F16%s", e->t->type_name,
			w->kind == WEIGHT_LINEAR ? " or F8_E4M3" : "");
	m->data = aligned_data(b, e);
	if (!m->data)
		return b->err->code;
	return type == DT_F8_E4M3 ? bind_scale(b, e, m) : 0;
}

static int bind_weight(void *arg, const struct weight *w)
{
	const struct binder *b = arg;
	struct ckpt_tensor *e = ckpt_find(b->m->files, w->name, strlen(w->name));
	bool vector = w->kind == WEIGHT_NORM || w->kind == WEIGHT_BIAS;
	int rc;

	if (!e || !e->listed)
		return w->optional
			? 0
			: err_set(b->err, DS_DATA, "cannot use '%s': tensor '%s' is missing", b->m->dir, w->name);
	e->used = true;
	if ((rc = check_shape(b, e, vector, w->rows, w->cols)))
		return rc;
	return w->kind == WEIGHT_BIAS ? bind_bias(b, e, w) : bind_matrix(b, e, w);
}

/* The engine packs what goes into gate and up once, and once for all experts of a layer: their types agree. */
static int same_type(const struct binder *b, const struct mat *m, const struct mat *as, const char *name,
	const char *other)
{
	const struct ckpt_tensor *e;

	if (m->type == as->type)
		return 0;
	e = ckpt_find(b->m->files, name, strlen(name));
	return refuse(b, e, "is %s, but '%s' is %s; one type is wanted for both", dtype_name(m->type), other,
		dtype_name(as->type));
}

/* An FFN: gate and up; and, beside another of the layer, gate and gate, down and down. */
static int check_ffn(const struct binder *b, const struct ffn *f, const char *prefix, const struct ffn *as,
	const char *as_prefix)
{
	char gate[128], up[128], other[128];
	int rc;

	snprintf(gate, sizeof gate, "%s.gate_proj.weight", prefix);
	snprintf(up, sizeof up, "%s.up_proj.weight", prefix);
	rc = same_type(b, &f->up, &f->gate, up, gate);
	if (rc || !as)
		return rc;
	snprintf(other, sizeof other, "%s.gate_proj.weight", as_prefix);
	rc = same_type(b, &f->gate, &as->gate, gate, other);
	if (rc)
		return rc;
	snprintf(up, sizeof up, "%s.down_proj.weight", prefix);
	snprintf(other, sizeof other, "%s.down_proj.weight", as_prefix);
	return same_type(b, &f->down, &as->down, up, other);
}

static int check_layer(const struct binder *b, const struct layer *l, size_t i)
{
	char prefix[64], first[64];
	int rc = 0;

	snprintf(prefix, sizeof prefix, "model.layers.%zu.mlp", i);
	if (!l->moe)
		return check_ffn(b, &l->dense, prefix, NULL, NULL);
	snprintf(prefix, sizeof prefix, "model.layers.%zu.mlp.shared_experts", i);
	if (b->m->config.shared)
		rc = check_ffn(b, &l->shared, prefix, NULL, NULL);
	snprintf(first, sizeof first, "model.layers.%zu.mlp.experts.0", i);
	for (size_t e = 0; !rc && e < b->m->config.experts; e++) {
		snprintf(prefix, sizeof prefix, "model.layers.%zu.mlp.experts.%zu", i, e);
		rc = check_ffn(b, &l->experts[e], prefix, e ? l->experts : NULL, first);
	}
	return rc;
}

/* MTP layers whose tensors the files have: a checkpoint may have been stored without them. */
static size_t count_mtp(const struct checkpoint *c, const struct config *cfg)
{
	size_t n = 0;

	for (bool found = true; n < cfg->mtp_layers && found; n += found) {
		char prefix[64];
		size_t len = (size_t)snprintf(prefix, sizeof prefix, "model.layers.%zu.", cfg->layers + n);

		found = false;
		for (size_t i = 0; i < c->count && !found; i++)
			found = c->order[i]->t->name_len > len && !memcmp(c->order[i]->t->name, prefix, len);
	}
	return n;
}

static int bind_all(struct model *m, struct ds_err *err)
{
	struct binder b = { m, err };
	int rc = layout_walk(m, bind_weight, &b);

	for (size_t i = 0; !rc && i < m->config.layers; i++)
		rc = check_layer(&b, &m->layers[i], i);
	for (size_t i = 0; !rc && i < m->mtp_count; i++)
		rc = check_layer(&b, &m->mtp[i].layer, m->config.layers + i);
	if (rc)
		return rc;
	if (m->config.tie_embeddings)
		m->head = m->embed;
	for (size_t i = 0; i < m->mtp_count; i++) {
		if (!m->mtp[i].embed.data)
			m->mtp[i].embed = m->embed;
		if (!m->mtp[i].head.data)
			m->mtp[i].head = m->head;
	}
	return fingerprint_quick(m, m->fingerprint, err);
}

/* How the files will be read: here and there; in large pieces, in huge pages where the file system has large folios. */
static void advise(const struct model *m, bool pieces)
{
	for (size_t i = 0; i < m->files->file_count; i++) {
		const struct st_file *f = &m->files->files[i];

		(void)madvise(f->map, f->size, pieces ? MADV_NORMAL : MADV_RANDOM);
		if (pieces)
			mem_huge(f->map, f->size);
	}
}

int model_open(struct model **out, const char *dir, struct ds_err *err)
{
	struct config config;
	struct checkpoint *files;
	struct model *m = NULL;
	int rc = config_load(dir, &config, err);

	*out = NULL;
	if (rc)
		return rc;
	files = mem_calloc(1, sizeof *files);
	if (!files)
		return err_nomem(err, sizeof *files, "a checkpoint");
	rc = ckpt_open(files, dir, err);
	if (!rc) {
		m = model_shell(&config, dir, count_mtp(files, &config), err);
		rc = m ? 0 : err->code;
	}
	if (rc) {
		ckpt_close(files);
		free(files);
		return rc;
	}
	m->files = files;
	advise(m, false);
	rc = bind_all(m, err);
	advise(m, true);
	rc = ckpt_result(m->files, rc, err); /* names and values may be of two versions */
	if (rc) {
		model_close(m);
		return rc;
	}
	*out = m;
	return 0;
}

int model_check(const struct model *m, struct ds_err *err)
{
	char now[40];
	struct ds_err other;
	int rc = ckpt_check(m->files, false, err);

	if (!rc || fingerprint_quick(m, now, &other) || strcmp(now, m->fingerprint))
		return rc;
	return ckpt_check(m->files, true, err); /* touched, or the same bytes once more */
}

void model_close(struct model *m)
{
	if (!m)
		return;
	for (size_t i = 0; i < m->copy_count; i++)
		free(m->copies[i]);
	free(m->copies);
	if (m->files)
		ckpt_close(m->files);
	free(m->files);
	model_free_shell(m);
}

size_t model_unused(const struct model *m,
	void (*fn)(void *arg, const char *file, const char *tensor, size_t tensor_len), void *arg)
{
	size_t n = 0;

	for (size_t i = 0; i < m->files->count; i++) {
		const struct ckpt_tensor *e = m->files->order[i];

		if (e->used)
			continue;
		fn(arg, e->file->path, e->t->name, e->t->name_len);
		n++;
	}
	return n;
}

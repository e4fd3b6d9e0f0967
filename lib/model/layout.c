#include "model/layout.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static bool shell_layer(struct layer *l, const struct config *c, size_t i)
{
	l->moe = config_is_moe(c, i);
	if (l->moe)
		l->experts = mem_calloc(c->experts, sizeof *l->experts);
	return !l->moe || l->experts;
}

struct model *model_shell(const struct config *c, const char *dir, size_t mtp_count, struct ds_err *err)
{
	size_t bytes = sizeof(struct model) + strlen(dir);
	struct model *m = mem_calloc(1, bytes);
	bool ok = true;

	if (m) {
		m->config = *c;
		memcpy(m->dir, dir, strlen(dir) + 1);
		m->layers = mem_calloc(c->layers, sizeof *m->layers);
		m->mtp = mem_calloc(mtp_count + 1, sizeof *m->mtp);
		m->mtp_count = m->mtp ? mtp_count : 0;
		ok = m->layers && m->mtp;
		for (size_t i = 0; ok && i < c->layers; i++)
			ok = shell_layer(&m->layers[i], c, i);
		for (size_t i = 0; ok && i < mtp_count; i++)
			ok = shell_layer(&m->mtp[i].layer, c, c->layers + i);
	}
	if (m && ok)
		return m;
	model_free_shell(m);
	err_nomem(err, bytes + c->layers * (sizeof(struct layer) + c->experts * sizeof(struct ffn)), "the layers");
	return NULL;
}

void model_free_shell(struct model *m)
{
	if (!m)
		return;
	for (size_t i = 0; m->layers && i < m->config.layers; i++)
		free(m->layers[i].experts);
	for (size_t i = 0; i < m->mtp_count; i++)
		free(m->mtp[i].layer.experts);
	free(m->layers);
	free(m->mtp);
	free(m);
}

struct walk {
	int (*fn)(void *arg, const struct weight *w);
	void *arg;
	int rc;
};

__attribute__((format(printf, 3, 0)))
static void visit(struct walk *k, struct weight *w, const char *fmt, va_list ap)
{
	if (k->rc)
		return;
	vsnprintf(w->name, sizeof w->name, fmt, ap);
	k->rc = k->fn(k->arg, w);
}

__attribute__((format(printf, 6, 7))) static void matrix(
	struct walk *k, enum weight_kind kind, struct mat *to, size_t rows, size_t cols, const char *fmt, ...)
{
	struct weight w = { .kind = kind, .rows = rows, .cols = cols, .mat = to };
	va_list ap;

	va_start(ap, fmt);
	visit(k, &w, fmt, ap);
	va_end(ap);
}

__attribute__((format(printf, 4, 5)))
static void norm(struct walk *k, struct mat *to, size_t n, const char *fmt, ...)
{
	struct weight w = { .kind = WEIGHT_NORM, .rows = 1, .cols = n, .mat = to };
	va_list ap;

	va_start(ap, fmt);
	visit(k, &w, fmt, ap);
	va_end(ap);
}

__attribute__((format(printf, 5, 6)))
static void optional(struct walk *k, struct mat *to, size_t rows, size_t cols, const char *fmt, ...)
{
	struct weight w = { .kind = WEIGHT_PLAIN, .optional = true, .rows = rows, .cols = cols, .mat = to };
	va_list ap;

	va_start(ap, fmt);
	visit(k, &w, fmt, ap);
	va_end(ap);
}

__attribute__((format(printf, 4, 5)))
static void bias(struct walk *k, const float **to, size_t n, const char *fmt, ...)
{
	struct weight w = { .kind = WEIGHT_BIAS, .rows = 1, .cols = n, .bias = to };
	va_list ap;

	va_start(ap, fmt);
	visit(k, &w, fmt, ap);
	va_end(ap);
}

static void walk_ffn(struct walk *k, struct ffn *f, size_t hidden, size_t width, const char *prefix)
{
	matrix(k, WEIGHT_LINEAR, &f->gate, width, hidden, "%s.gate_proj.weight", prefix);
	matrix(k, WEIGHT_LINEAR, &f->up, width, hidden, "%s.up_proj.weight", prefix);
	matrix(k, WEIGHT_LINEAR, &f->down, hidden, width, "%s.down_proj.weight", prefix);
}

static void walk_attention(struct walk *k, struct layer *l, const struct config *c, size_t i)
{
	size_t q = c->heads * (c->nope + c->rope);

	if (c->q_lora) {
		matrix(k, WEIGHT_LINEAR, &l->q_a, c->q_lora, c->hidden, "model.layers.%zu.self_attn.q_a_proj.weight",
			i);
		norm(k, &l->q_a_norm, c->q_lora, "model.layers.%zu.self_attn.q_a_layernorm.weight", i);
		matrix(k, WEIGHT_LINEAR, &l->q_b, q, c->q_lora, "model.layers.%zu.self_attn.q_b_proj.weight", i);
	} else {
		matrix(k, WEIGHT_LINEAR, &l->q, q, c->hidden, "model.layers.%zu.self_attn.q_proj.weight", i);
	}
	matrix(k, WEIGHT_LINEAR, &l->kv_a, c->kv_lora + c->rope, c->hidden,
		"model.layers.%zu.self_attn.kv_a_proj_with_mqa.weight", i);
	norm(k, &l->kv_a_norm, c->kv_lora, "model.layers.%zu.self_attn.kv_a_layernorm.weight", i);
	matrix(k, WEIGHT_LINEAR, &l->kv_b, c->heads * (c->nope + c->v), c->kv_lora,
		"model.layers.%zu.self_attn.kv_b_proj.weight", i);
	matrix(k, WEIGHT_LINEAR, &l->o, c->hidden, c->heads * c->v, "model.layers.%zu.self_attn.o_proj.weight", i);
}

static void walk_layer(struct walk *k, struct layer *l, const struct config *c, size_t i)
{
	char prefix[64];

	norm(k, &l->attn_norm, c->hidden, "model.layers.%zu.input_layernorm.weight", i);
	walk_attention(k, l, c, i);
	norm(k, &l->ffn_norm, c->hidden, "model.layers.%zu.post_attention_layernorm.weight", i);
	if (!l->moe) {
		snprintf(prefix, sizeof prefix, "model.layers.%zu.mlp", i);
		walk_ffn(k, &l->dense, c->hidden, c->inter, prefix);
		return;
	}
	matrix(k, WEIGHT_PLAIN, &l->router, c->experts, c->hidden, "model.layers.%zu.mlp.gate.weight", i);
	if (c->topk == TOPK_NOAUX_TC)
		bias(k, &l->bias, c->experts, "model.layers.%zu.mlp.gate.e_score_correction_bias", i);
	if (c->shared) {
		snprintf(prefix, sizeof prefix, "model.layers.%zu.mlp.shared_experts", i);
		walk_ffn(k, &l->shared, c->hidden, c->shared * c->moe_inter, prefix);
	}
	for (size_t e = 0; e < c->experts && !k->rc; e++) {
		snprintf(prefix, sizeof prefix, "model.layers.%zu.mlp.experts.%zu", i, e);
		walk_ffn(k, &l->experts[e], c->hidden, c->moe_inter, prefix);
	}
}

static void walk_mtp(struct walk *k, struct mtp_layer *p, const struct config *c, size_t i)
{
	norm(k, &p->enorm, c->hidden, "model.layers.%zu.enorm.weight", i);
	norm(k, &p->hnorm, c->hidden, "model.layers.%zu.hnorm.weight", i);
	matrix(k, WEIGHT_PLAIN, &p->eh_proj, c->hidden, 2 * c->hidden, "model.layers.%zu.eh_proj.weight", i);
	walk_layer(k, &p->layer, c, i);
	norm(k, &p->norm, c->hidden, "model.layers.%zu.shared_head.norm.weight", i);
	optional(k, &p->embed, c->vocab, c->hidden, "model.layers.%zu.embed_tokens.weight", i);
	optional(k, &p->head, c->vocab, c->hidden, "model.layers.%zu.shared_head.head.weight", i);
}

int layout_walk(struct model *m, int (*fn)(void *arg, const struct weight *w), void *arg)
{
	const struct config *c = &m->config;
	struct walk k = { fn, arg, 0 };

	matrix(&k, WEIGHT_PLAIN, &m->embed, c->vocab, c->hidden, "model.embed_tokens.weight");
	for (size_t i = 0; i < c->layers && !k.rc; i++)
		walk_layer(&k, &m->layers[i], c, i);
	norm(&k, &m->norm, c->hidden, "model.norm.weight");
	if (!c->tie_embeddings)
		matrix(&k, WEIGHT_PLAIN, &m->head, c->vocab, c->hidden, "lm_head.weight");
	for (size_t i = 0; i < m->mtp_count && !k.rc; i++)
		walk_mtp(&k, &m->mtp[i], c, c->layers + i);
	return k.rc;
}

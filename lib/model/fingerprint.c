#include "model/fingerprint.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/mem.h"
#include "model/checkpoint.h"

/* One place a tensor: each touches a page, and training changes every value. */
enum { WHOLE = 4096, SAMPLE = 128 };

/* Every field that the parser understood, as text: spelling and order of config.json do not matter. */
static void config_text(struct buf *b, const struct config *c)
{
	buf_printf(b, "%s %zu %zu %zu %zu %zu %zu", c->model_type, c->vocab, c->hidden, c->layers, c->mtp_layers,
		c->dense_layers, c->moe_every);
	buf_printf(b, " %zu %zu %zu %zu %zu %zu", c->heads, c->q_lora, c->kv_lora, c->nope, c->rope, c->v);
	buf_printf(b, " %zu %zu %zu %zu %zu %zu %zu", c->inter, c->moe_inter, c->experts, c->shared, c->top_k,
		c->groups, c->topk_groups);
	buf_printf(b, " %d %d %d %a %a %a", (int)c->score, (int)c->topk, c->norm_topk, c->route_scale, c->eps,
		c->rope_theta);
	buf_printf(b, " %d %a %a %a %a %a %zu %zu", (int)c->rope_type, c->yarn_factor, c->beta_fast, c->beta_slow,
		c->mscale, c->mscale_all_dim, c->yarn_original, c->max_positions);
	buf_printf(b, " %d %d %d %lld", c->tie_embeddings, c->fp8, c->ue8m0, (long long)c->bos);
	for (size_t i = 0; i < c->eos_count; i++)
		buf_printf(b, " %zu", c->eos[i]);
	buf_printf(b, "\n");
}

static void tensor_text(struct buf *b, const struct st_tensor *t)
{
	buf_add(b, t->name, t->name_len);
	buf_printf(b, " %s", t->type_name);
	for (uint32_t i = 0; i < t->rank; i++)
		buf_printf(b, " %llu", (unsigned long long)t->shape[i]);
	buf_printf(b, "\n");
}

/*
 * A few bytes of a tensor.  A page that had to be read from disk for them is given up again: later, when the weights
 * around it are read, it would keep them from lying in one huge page.
 */
static void add_part(XXH3_state_t *s, const unsigned char *p, size_t n)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), skew = (uintptr_t)p % page, len = round_up(skew + n, page);
	/* a mapped file's pages are not written to, whatever their pointer's type */
	void *at = (void *)((uintptr_t)p - skew);
	unsigned char here[4] = { 1 };
	bool cold = len <= sizeof(here) * page && mincore(at, len, here) == 0 && !(here[0] & 1);

	XXH3_128bits_update(s, p, n);
#ifdef MADV_PAGEOUT
	if (cold)
		(void)madvise(at, len, MADV_PAGEOUT);
#else
	(void)cold;
#endif
}

static void add_bytes(XXH3_state_t *s, const struct st_tensor *t, bool full)
{
	if (full)
		XXH3_128bits_update(s, t->data, t->bytes);
	else if (t->bytes <= WHOLE)
		add_part(s, t->data, t->bytes);
	else
		add_part(s, t->data + t->bytes / 2, SAMPLE);
}

static int fingerprint(const struct model *m, bool full, char *hex, struct ds_err *err)
{
	XXH3_state_t *s = XXH3_createState();
	struct buf b = { .p = NULL };
	XXH128_hash_t h;

	if (!s)
		return err_nomem(err, 576, "a hash");
	XXH3_128bits_reset(s);
	config_text(&b, &m->config);
	for (size_t i = 0; i < m->files->count; i++) {
		const struct ckpt_tensor *e = m->files->order[i];

		if (!e->used)
			continue; /* what is not part of the model does not tell models apart */
		tensor_text(&b, e->t);
		XXH3_128bits_update(s, b.p, b.len);
		b.len = 0;
		add_bytes(s, e->t, full);
	}
	h = XXH3_128bits_digest(s);
	XXH3_freeState(s);
	snprintf(hex, 33, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
	if (b.nomem) {
		buf_free(&b);
		return err_nomem(err, b.len, "a fingerprint");
	}
	buf_free(&b);
	return 0;
}

int fingerprint_quick(const struct model *m, char *hex, struct ds_err *err)
{
	return fingerprint(m, false, hex, err);
}

int model_fingerprint_full(const struct model *m, char *hex, struct ds_err *err)
{
	return ckpt_result(m->files, fingerprint(m, true, hex, err), err);
}

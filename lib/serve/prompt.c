#include "serve/prompt.h"

#include <stdlib.h>
#include <string.h>

#include "base/time.h"

/* ---- what is there already ---- */

static bool make_decoded(struct prompt *p)
{
	size_t n = p->count / KV_BLOCK + 1;

	if (!p->decoded)
		p->decoded = mem_array(n, 1);
	if (p->decoded)
		memset(p->decoded, KV_BLOCK, n);
	return p->decoded != NULL;
}

void prompt_ask(struct work *w, struct prompt *p)
{
	size_t have = 0;

	if (!w->store || p->asked)
		return;
	p->asked = true;
	if (w->dump || !make_decoded(p)) /* of a dump no row is to be missing */
		return;
	if (w->prefix)
		have = prefix_find(w->prefix, p->ids, p->count, p->decoded) / KV_BLOCK;
	p->ask = kv_ask_new(w->store, p->ids, p->count, p->decoded, have);
	memset(p->decoded, KV_BLOCK, p->count / KV_BLOCK + 1);
}

/* What has arrived is there from now on, for others too. */
static void settle(struct work *w, struct prompt *p)
{
	size_t blocks = kv_ask_arrived(p->ask, p->kv->length / KV_BLOCK, p->decoded);

	p->looked_for = true;
	if (blocks * KV_BLOCK <= p->kv->length)
		return;
	p->kv->length = blocks * KV_BLOCK;
	p->kv->mtp = w->mtp ? p->kv->length : 0;
	p->hit = p->kv->length;
	if (w->prefix)
		prefix_keep(w->prefix, p->kv, p->ids, p->kv->length + 1, p->decoded);
}

/* What has not arrived may be written to yet: other memory takes its place. */
static void give_up(struct work *w, struct prompt *p)
{
	settle(w, p);
	kv_seq_shrink(p->kv, w->pool, p->kv->length / KV_BLOCK);
	kv_ask_end(p->ask, true);
	p->ask = NULL;
}

static enum prompt_store wait_for(struct work *w, struct prompt *p, bool turn)
{
	int64_t now = time_mono_ns();

	if (!turn)
		return PROMPT_WAITS;
	if (!p->waits_ns)
		p->waits_ns = now;
	if (now - p->waits_ns >= w->store_timeout_ns) {
		give_up(w, p);
		return PROMPT_READY;
	}
	kv_client_due(w->store, p->waits_ns + w->store_timeout_ns);
	return PROMPT_WAITS;
}

/* Whether the store has more of it than memory has now. */
static enum prompt_store compare(struct work *w, struct prompt *p, bool turn)
{
	size_t found = kv_ask_found(p->ask), have = p->kv->length / KV_BLOCK;

	if (w->prefix && !p->begun) {
		have = prefix_find(w->prefix, p->ids, p->count, p->decoded) / KV_BLOCK;
		memset(p->decoded, KV_BLOCK, p->count / KV_BLOCK + 1);
	}
	if (found <= have) /* now: it may lose some before it is this prompt's turn */
		return PROMPT_READY;
	/* Another brings it: then it is in memory. */
	return w->prefix && kv_ask_elsewhere(p->ask, have) ? wait_for(w, p, turn) : PROMPT_FETCH;
}

enum prompt_store prompt_store(struct work *w, struct prompt *p, bool turn)
{
	if (!p->ask || p->looked_for)
		return PROMPT_READY;
	switch (kv_ask_state(p->ask)) {
	case KV_ASK_FOUND: return compare(w, p, turn);
	case KV_ASK_OVER: settle(w, p); return PROMPT_READY;
	default: return wait_for(w, p, turn);
	}
}

size_t prompt_fetch_blocks(const struct prompt *p) { return kv_ask_found(p->ask); }

void prompt_no_fetch(struct prompt *p)
{
	p->looked_for = true;
}

void prompt_fetch(struct work *w, struct prompt *p)
{
	(void)w;
	if (kv_ask_found(p->ask) * KV_BLOCK <= p->kv->length ||
	    !kv_ask_fetch(p->ask, p->kv, p->kv->length / KV_BLOCK, p->decoded))
		p->looked_for = true;
}

int prompt_begin(struct work *w, struct prompt *p, struct ds_err *err)
{
	if (w->mtp && !p->hidden) {
		p->hidden = mem_array(w->model->config.hidden, sizeof(*p->hidden));
		if (!p->hidden)
			return err_nomem(err, w->model->config.hidden * sizeof(*p->hidden), "a hidden state");
	}
	if (w->store && !p->decoded && !make_decoded(p))
		return err_nomem(err, p->count / KV_BLOCK + 1, "a prompt");
	p->begun = true;
	p->hit = w->prefix ? prefix_take(w->prefix, p->kv, p->ids, p->count, p->decoded) : p->kv->length;
	return 0;
}

void prompt_reset(struct work *w, struct prompt *p)
{
	kv_seq_clear(p->kv, w->pool);
	if (p->decoded)
		memset(p->decoded, KV_BLOCK, p->count / KV_BLOCK + 1);
	p->begun = false;
	p->hit = 0;
}

void prompt_end(struct prompt *p)
{
	kv_ask_end(p->ask, false);
	free(p->decoded);
	free(p->keys);
	free(p->hidden);
	p->ask = NULL;
	p->decoded = NULL;
	p->keys = NULL;
	p->hidden = NULL;
}

void prompt_publish(struct work *w, struct prompt *p)
{
	size_t most = p->count / KV_BLOCK;

	if (!w->store || !p->decoded)
		return;
	p->keys = mem_array(most + 1, sizeof(*p->keys));
	if (!p->keys)
		return;
	p->key_count = kv_keys(w->store, p->ids, p->count, p->decoded, p->keys);
	kv_put_prompt(w->store, p->ask, p->kv, p->ids, p->decoded, p->keys, p->key_count);
}

/* ---- computing ---- */

struct segment prompt_segment(const struct prompt *p, size_t rows, uint64_t stream, const char *name)
{
	return (struct segment){ .kv = p->kv, .tokens = p->ids + p->kv->length, .rows = rows, .stream = stream,
		.name = name, .want_logits = p->kv->length + rows == p->count };
}

/* MTP entries of the step's rows: all but the prompt's last, which the first generated token completes. */
static int mtp_entries(struct work *w, const struct segment *segs, struct prompt *const *prompts, size_t n,
	struct ds_err *err)
{
	size_t count = 0;

	for (size_t i = 0; i < n; i++) {
		const struct prompt *p = prompts[i];
		struct segment *s = &w->mtp_segs[count];

		if (!p)
			continue;
		*s = (struct segment){ .kv = p->kv, .tokens = segs[i].tokens + 1, .h = segs[i].hidden,
			.rows = segs[i].rows - (segs[i].want_logits > 0), .stream = segs[i].stream,
			.name = segs[i].name };
		count += s->rows > 0;
	}
	return count ? engine_mtp(w->engine, w->mtp_segs, count, err) : 0;
}

int prompt_stepped(struct work *w, const struct segment *segs, struct prompt *const *prompts, size_t n,
	struct ds_err *err)
{
	size_t hidden = w->model->config.hidden;
	int rc;

	for (size_t i = 0; i < n; i++)
		if (prompts[i] && segs[i].want_logits && prompts[i]->hidden)
			memcpy(prompts[i]->hidden, segs[i].hidden + (segs[i].rows - 1) * hidden,
				hidden * sizeof(float));
	rc = w->mtp ? mtp_entries(w, segs, prompts, n, err) : 0;
	for (size_t i = 0; i < n && !rc; i++)
		if (prompts[i] && segs[i].want_logits && w->prefix)
			prefix_keep(w->prefix, prompts[i]->kv, prompts[i]->ids, prompts[i]->count,
				prompts[i]->decoded);
	return rc;
}

int prompt_first(struct work *w, const struct request *r, const struct prompt *p, const struct segment *s,
	struct sampled *out, struct ds_err *err)
{
	struct sample_history *h;
	int rc = work_history(r, p->ids, p->count, &h, err);

	for (size_t i = 0; i < r->n && !rc; i++)
		if (!work_sample(w, r, i, h, s->logits, s->argmax[0], s->lse[0], p->count, &out[i]))
			rc = work_not_finite(w, r, err);
	profile_out(w->profile, rc ? 0 : r->n);
	sample_history_free(h);
	return rc;
}

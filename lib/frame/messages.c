/* What stages say to each other about a request: its KV, its tokens, its end. */
#include "frame/messages.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "frame/messages_impl.h"

/* ---- kv ---- */

void kv_block_put(struct meta_builder *b, const struct kv_block *k, enum dtype type, uint64_t layers, uint64_t block,
	uint64_t dim)
{
	uint64_t shape[3] = { layers, block, dim };

	meta_put_uint(b, "first", k->first);
	meta_put_uint(b, "count", k->count);
	if (k->key[0])
		meta_put_cstr(b, "block_key", k->key);
	if (k->parent[0])
		meta_put_cstr(b, "parent_key", k->parent);
	if (k->has_decoded)
		meta_put_uint(b, "decoded", k->decoded);
	meta_put_tensor(b, "kv", type, "layer,token,dim", shape, 3, 0, NULL);
}

int kv_block_get(const struct frame *f, struct kv_block *k, struct frame_tensor *t, struct ds_err *err)
{
	int rc;

	k->key[0] = k->parent[0] = 0;
	k->decoded = 0;
	k->has_decoded = meta_uint(f->meta, "decoded", &k->decoded) == META_OK;
	if ((rc = message_uint(f, f->meta, "first", true, 0, UINT32_MAX, &k->first, err)) ||
	    (rc = message_uint(f, f->meta, "count", true, 1, UINT32_MAX, &k->count, err)) ||
	    (rc = message_cstr(f, "block_key", false, k->key, sizeof(k->key), err)) ||
	    (rc = message_cstr(f, "parent_key", false, k->parent, sizeof(k->parent), err)) ||
	    (rc = message_uint(f, f->meta, "decoded", false, 0, UINT32_MAX, &k->decoded, err)) ||
	    (rc = frame_tensor_get(f, "kv", t, err)))
		return rc;
	if (t->ndim != 3 || k->count > t->shape[1])
		return message_bad(f, "kv", err, "is not [layer, token, dim] with at least 'count' tokens");
	return 0;
}

/* ---- usage and log-probabilities, shared by what follows ---- */

static void put_usage(struct meta_builder *b, const struct usage *u)
{
	meta_put_map(b, "usage");
	meta_put_uint(b, "prompt", u->prompt);
	meta_put_uint(b, "hit", u->hit);
	meta_put_uint(b, "miss", u->miss);
	meta_put_uint(b, "completion", u->completion);
	meta_put_end(b);
}

static int get_usage(const struct frame *f, struct usage *u, struct ds_err *err)
{
	struct meta m;
	int rc;

	if (meta_map(f->meta, "usage", &m) != META_OK)
		return message_bad(f, "usage", err, "is missing or not a map");
	if ((rc = message_uint(f, m, "prompt", true, 0, UINT32_MAX, &u->prompt, err)) ||
	    (rc = message_uint(f, m, "hit", false, 0, UINT32_MAX, &u->hit, err)) ||
	    (rc = message_uint(f, m, "miss", false, 0, UINT32_MAX, &u->miss, err)))
		return rc;
	return message_uint(f, m, "completion", false, 0, (uint64_t)UINT32_MAX * REQUEST_MAX_N, &u->completion, err);
}

static void put_tops(struct meta_builder *b, const char *key, const struct sampled *s)
{
	meta_put_array(b, key);
	for (size_t i = 0; i < s->tops; i++) {
		meta_put_array(b, NULL);
		meta_put_uint(b, NULL, s->top[i].id);
		meta_put_real(b, NULL, s->top[i].logprob);
		meta_put_end(b);
	}
	meta_put_end(b);
}

static int get_tops(const struct frame *f, const char *key, struct meta all, size_t n, struct sampled *s,
	struct ds_err *err)
{
	struct meta pair;
	uint64_t id;
	size_t two;

	if (n > REQUEST_MAX_LOGPROBS)
		return message_bad(f, key, err, "has %zu entries, more than %d", n, REQUEST_MAX_LOGPROBS);
	for (size_t i = 0; i < n; i++) {
		if (meta_at_array(all, i, &pair, &two) != META_OK || two != 2 ||
		    meta_at_uint(pair, 0, &id) != META_OK || id > UINT32_MAX ||
		    meta_at_real(pair, 1, &s->top[i].logprob) != META_OK || s->top[i].logprob > 0.0)
			return message_bad(f, key, err, "holds something that is no [token id, number up to 0]");
		s->top[i].id = (uint32_t)id;
	}
	s->tops = n;
	return 0;
}

/* Of one token; an absent key is an empty list. */
static int get_own_tops(const struct frame *f, struct sampled *s, struct ds_err *err)
{
	struct meta a;
	size_t n;
	int rc = message_array(f, f->meta, "top_logprobs", REQUEST_MAX_LOGPROBS, &a, &n, err);

	return rc ? rc : get_tops(f, "top_logprobs", a, n, s, err);
}

/* ---- prefilled ---- */

static void put_choices(struct meta_builder *b, const struct prefilled *p)
{
	meta_put_array(b, "tokens");
	for (size_t i = 0; i < p->n; i++)
		meta_put_uint(b, NULL, p->first[i].id);
	meta_put_end(b);
	meta_put_array(b, "logprobs");
	for (size_t i = 0; i < p->n; i++)
		meta_put_real(b, NULL, p->first[i].logprob);
	meta_put_end(b);
	meta_put_array(b, "tops");
	for (size_t i = 0; i < p->n; i++)
		put_tops(b, NULL, &p->first[i]);
	meta_put_end(b);
}

void prefilled_put(struct meta_builder *b, const struct prefilled *p)
{
	meta_put_uint(b, "position", p->position);
	meta_put_uint(b, "token", p->first[0].id);
	meta_put_real(b, "logprob", p->first[0].logprob);
	if (p->first[0].tops)
		put_tops(b, "top_logprobs", &p->first[0]);
	if (p->n > 1)
		put_choices(b, p);
	put_usage(b, &p->usage);
	meta_put_uint(b, "prefill_ns", p->prefill_ns);
}

static int get_choices(const struct frame *f, struct sampled *first, size_t n, struct ds_err *err)
{
	struct meta ids, logprobs, tops, own;
	size_t have[3], count;
	uint64_t id;
	int rc;

	if ((rc = message_array(f, f->meta, "tokens", REQUEST_MAX_N, &ids, &have[0], err)) ||
	    (rc = message_array(f, f->meta, "logprobs", REQUEST_MAX_N, &logprobs, &have[1], err)) ||
	    (rc = message_array(f, f->meta, "tops", REQUEST_MAX_N, &tops, &have[2], err)))
		return rc;
	if (n == 1 && have[0] <= 1)
		return 0;
	if (have[0] != n || have[1] != n || (have[2] && have[2] != n))
		return err_set(err, DS_DATA,
			"frame %llu (%s): %zu 'tokens', %zu 'logprobs' and %zu 'tops' for %zu choices",
			(unsigned long long)f->number, frame_type_name(f->type), have[0], have[1], have[2], n);
	for (size_t i = 0; i < n; i++) {
		struct sampled *s = &first[i];

		if (meta_at_uint(ids, i, &id) != META_OK || id > UINT32_MAX || (!i && id != s->id))
			return message_bad(f, "tokens", err,
				"holds something that is no token id, or not 'token' first");
		s->id = (uint32_t)id;
		if (meta_at_real(logprobs, i, &s->logprob) != META_OK || s->logprob > 0.0)
			return message_bad(f, "logprobs", err, "holds something that is no number up to 0");
		if (have[2] && meta_at_array(tops, i, &own, &count) != META_OK)
			return message_bad(f, "tops", err, "holds something that is no array");
		if (have[2] && (rc = get_tops(f, "tops", own, count, s, err)))
			return rc;
	}
	return 0;
}

int prefilled_get(const struct frame *f, struct sampled *first, size_t n, struct prefilled *p, struct ds_err *err)
{
	uint64_t token = 0;
	int rc;

	memset(p, 0, sizeof(*p));
	memset(first, 0, n * sizeof(*first));
	p->first = first;
	p->n = n;
	if ((rc = message_uint(f, f->meta, "position", true, 1, UINT32_MAX, &p->position, err)) ||
	    (rc = message_uint(f, f->meta, "token", true, 0, UINT32_MAX, &token, err)) ||
	    (rc = message_real(f, f->meta, "logprob", -INFINITY, 0.0, &first->logprob, err)) ||
	    (rc = get_own_tops(f, first, err)) || (rc = get_usage(f, &p->usage, err)))
		return rc;
	first->id = (uint32_t)token;
	rc = get_choices(f, first, n, err);
	return rc ? rc : message_uint(f, f->meta, "prefill_ns", false, 0, UINT64_MAX, &p->prefill_ns, err);
}

void prefilled_put_hidden(struct meta_builder *b, size_t hidden)
{
	uint64_t shape = hidden;

	meta_put_tensor(b, "hidden", DT_F32, "hidden", &shape, 1, 0, NULL);
}

int prefilled_hidden(const struct frame *f, size_t hidden, const float **h, struct ds_err *err)
{
	struct frame_tensor t;
	int rc;

	*h = NULL;
	if (!frame_tensor_count(f))
		return 0;
	rc = frame_tensor_get(f, "hidden", &t, err);
	if (rc)
		return rc;
	if (t.type != DT_F32 || t.ndim != 1 || t.shape[0] != hidden || t.offset % sizeof(float))
		return message_bad(f, "hidden", err, "is not a row of %zu F32", hidden);
	*h = (const float *)(const void *)(f->data + t.offset);
	return 0;
}

/* ---- token ---- */

void token_put(struct meta_builder *b, const struct token *t)
{
	meta_put_uint(b, "index", t->index);
	if (t->choice)
		meta_put_uint(b, "choice", t->choice);
	meta_put_uint(b, "id", t->t.id);
	if (t->has_logprob)
		meta_put_real(b, "logprob", t->t.logprob);
	if (t->has_logprob && t->t.tops)
		put_tops(b, "top_logprobs", &t->t);
	meta_put_uint(b, "t_ns", t->t_ns);
	if (t->hold)
		meta_put_uint(b, "hold", t->hold);
	if (!t->reason[0])
		return;
	meta_put_cstr(b, "finish_reason", t->reason);
	if (t->stop.n) {
		meta_put_str(b, "stop", t->stop.p, t->stop.n);
		meta_put_uint(b, "cut", t->cut);
	}
}

static int get_stop(const struct frame *f, struct token *t, struct ds_err *err)
{
	const char *p;
	size_t n = 0;

	switch (meta_str(f->meta, "stop", &p, &n)) {
	case META_ABSENT:
		return t->cut ? message_bad(f, "cut", err, "is there without 'stop'") : 0;
	case META_TYPE:
		return message_bad(f, "stop", err, "is not a text");
	case META_OK:
		break;
	}
	if (!n || n > REQUEST_STOP_BYTES)
		return message_bad(f, "stop", err, "is a text of %zu bytes, not of 1 to %d", n, REQUEST_STOP_BYTES);
	if (!t->reason[0])
		return message_bad(f, "stop", err, "is there without 'finish_reason'");
	t->stop.n = n;
	memcpy(t->stop.p, p, n);
	return 0;
}

int token_get(const struct frame *f, struct token *t, struct ds_err *err)
{
	uint64_t id = 0;
	int rc;

	memset(t, 0, sizeof(*t));
	t->t.logprob = 1.0; /* no log-probability */
	if ((rc = message_uint(f, f->meta, "index", true, 0, UINT32_MAX, &t->index, err)) ||
	    (rc = message_uint(f, f->meta, "choice", false, 0, REQUEST_MAX_N - 1, &t->choice, err)) ||
	    (rc = message_uint(f, f->meta, "id", true, 0, UINT32_MAX, &id, err)) ||
	    (rc = message_real(f, f->meta, "logprob", -INFINITY, 0.0, &t->t.logprob, err)) ||
	    (rc = get_own_tops(f, &t->t, err)) ||
	    (rc = message_uint(f, f->meta, "t_ns", false, 0, UINT64_MAX, &t->t_ns, err)) ||
	    (rc = message_uint(f, f->meta, "hold", false, 0, UINT32_MAX, &t->hold, err)) ||
	    (rc = message_cstr(f, "finish_reason", false, t->reason, sizeof(t->reason), err)) ||
	    (rc = message_uint(f, f->meta, "cut", false, 0, UINT32_MAX, &t->cut, err)) || (rc = get_stop(f, t, err)))
		return rc;
	t->t.id = (uint32_t)id;
	t->has_logprob = t->t.logprob <= 0.0;
	return 0;
}

/* ---- done ---- */

static void put_done_choices(struct meta_builder *b, const struct done *d)
{
	if (d->choice_count < 2)
		return;
	meta_put_array(b, "choices");
	for (size_t i = 0; i < d->choice_count; i++) {
		meta_put_array(b, NULL);
		meta_put_cstr(b, NULL, d->choices[i].reason);
		meta_put_uint(b, NULL, d->choices[i].completion);
		meta_put_end(b);
	}
	meta_put_end(b);
}

void done_put(struct meta_builder *b, const struct done *d)
{
	meta_put_cstr(b, "id", d->id);
	meta_put_cstr(b, "finish_reason", d->reason);
	put_usage(b, &d->usage);
	put_done_choices(b, d);
	if (d->mtp.drafted || d->mtp.accepted || d->mtp.steps) {
		meta_put_map(b, "mtp");
		meta_put_uint(b, "drafted", d->mtp.drafted);
		meta_put_uint(b, "accepted", d->mtp.accepted);
		meta_put_uint(b, "steps", d->mtp.steps);
		meta_put_end(b);
	}
	meta_put_uint(b, "prefill_ns", d->prefill_ns);
	meta_put_uint(b, "decode_ns", d->decode_ns);
}

static int get_done_choices(const struct frame *f, struct done *d, struct ds_err *err)
{
	struct meta all, pair;
	uint64_t sum = 0;
	size_t n, two, len;
	const char *p;
	int rc = message_array(f, f->meta, "choices", REQUEST_MAX_N, &all, &n, err);

	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++) {
		struct done_choice *c = &d->choices[i];

		if (meta_at_array(all, i, &pair, &two) != META_OK || two != 2 ||
		    meta_at_str(pair, 0, &p, &len) != META_OK || len >= sizeof(c->reason) || memchr(p, 0, len) ||
		    meta_at_uint(pair, 1, &c->completion) != META_OK || c->completion > UINT32_MAX)
			return message_bad(f, "choices", err, "holds something that is no [finish_reason, tokens]");
		memcpy(c->reason, p, len);
		sum += c->completion;
	}
	d->choice_count = n;
	if (n && sum != d->usage.completion)
		return message_bad(f, "choices", err, "made %llu tokens together, 'usage' says %llu",
			(unsigned long long)sum, (unsigned long long)d->usage.completion);
	return 0;
}

static int get_mtp(const struct frame *f, struct done *d, struct ds_err *err)
{
	struct meta m;
	int rc;

	if ((rc = message_map(f, "mtp", &m, err)) ||
	    (rc = message_uint(f, m, "drafted", false, 0, UINT64_MAX, &d->mtp.drafted, err)) ||
	    (rc = message_uint(f, m, "accepted", false, 0, d->mtp.drafted, &d->mtp.accepted, err)))
		return rc;
	return message_uint(f, m, "steps", false, 0, UINT64_MAX, &d->mtp.steps, err);
}

int done_get(const struct frame *f, struct done *d, struct ds_err *err)
{
	int rc;

	memset(d, 0, sizeof(*d));
	if ((rc = message_cstr(f, "id", true, d->id, sizeof(d->id), err)) ||
	    (rc = message_cstr(f, "finish_reason", true, d->reason, sizeof(d->reason), err)) ||
	    (rc = get_usage(f, &d->usage, err)) || (rc = get_done_choices(f, d, err)) || (rc = get_mtp(f, d, err)) ||
	    (rc = message_uint(f, f->meta, "prefill_ns", false, 0, UINT64_MAX, &d->prefill_ns, err)))
		return rc;
	return message_uint(f, f->meta, "decode_ns", false, 0, UINT64_MAX, &d->decode_ns, err);
}

/* ---- error ---- */

void error_put(struct meta_builder *b, const struct error_message *e)
{
	meta_put_uint(b, "code", e->code);
	if (e->id[0])
		meta_put_cstr(b, "id", e->id);
	meta_put_cstr(b, "message", e->text);
	meta_put_bool(b, "retryable", e->retryable);
}

int error_get(const struct frame *f, struct error_message *e, struct ds_err *err)
{
	int rc;

	memset(e, 0, sizeof(*e));
	if ((rc = message_uint(f, f->meta, "code", true, 1, 255, &e->code, err)) ||
	    (rc = message_cstr(f, "message", true, e->text, sizeof(e->text), err)) ||
	    (rc = message_cstr(f, "id", false, e->id, sizeof(e->id), err)))
		return rc;
	return message_bool(f, f->meta, "retryable", &e->retryable, err);
}

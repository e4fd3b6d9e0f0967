/* ds-frame diff: tokens and the meta of other frames. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "frame/diff.h"

/* Times differ always; padding and hashes follow from the rest; tensors are compared as such.  What drafts did (mtp)
 * and what caches had (usage.hit, usage.miss) tell how an answer was made, not what it is. */
static bool skip_key(const char *in, const char *key, size_t n)
{
	static const char *const keys[] = { "_", "xxh", "tensors", "mtp" };

	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		if (strlen(keys[i]) == n && memcmp(keys[i], key, n) == 0)
			return true;
	if (strcmp(in, "usage") == 0 && ((n == 3 && !memcmp(key, "hit", n)) || (n == 4 && !memcmp(key, "miss", n))))
		return true;
	return n > 3 && memcmp(key + n - 3, "_ns", 3) == 0;
}

/* What the walk over tokens has compared already. */
static bool skip_token_key(const char *in, const char *key, size_t n)
{
	static const char *const keys[] = { "index", "id", "logprob", "choice" };

	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		if (strlen(keys[i]) == n && memcmp(keys[i], key, n) == 0)
			return true;
	return skip_key(in, key, n);
}

/* A difference of log-probabilities is a relative one of probabilities, so tol is for it as it is. */
static bool near_logprob(const struct diff *d, double a, double b)
{
	return fabs(a - b) <= fmax(d->o.tol, d->o.atol);
}

static bool begins(const char *s, const char *with)
{
	return strncmp(s, with, strlen(with)) == 0;
}

static bool near_number(void *ctx, const char *path, double a, double b)
{
	const struct diff *d = ctx;
	double gap = fabs(a - b);

	if (begins(path, "logprob") || begins(path, "top_logprobs") || begins(path, "tops"))
		return near_logprob(d, a, b);
	if (!isfinite(gap))
		return false;
	return (d->o.atol >= 0.0 && gap <= d->o.atol) || (d->o.tol >= 0.0 && gap <= d->o.tol * fabs(a));
}

struct place { uint64_t at; uint32_t len; };

static int meta_pair(struct diff *d, const struct place at[2], bool (*skip)(const char *, const char *, size_t),
	struct meta_difference *out, bool *differs, struct ds_err *err)
{
	struct meta_compare how = { .skip = skip, .near = near_number, .ctx = d };
	struct meta_doc *doc[2] = { NULL, NULL };
	int rc = 0;

	for (int s = 0; !rc && s < 2; s++)
		rc = capture_meta(&d->c[s], at[s].at, at[s].len, &doc[s], err);
	if (!rc)
		*differs = meta_differ(meta_root(doc[0]), meta_root(doc[1]), &how, out);
	meta_doc_free(doc[0]);
	meta_doc_free(doc[1]);
	return rc;
}

/* ---- tokens ---- */

static int compare_request(const struct cap_token *x, const struct cap_token *y)
{
	if (x->turn != y->turn)
		return x->turn < y->turn ? -1 : 1;
	return x->choice < y->choice ? -1 : x->choice > y->choice;
}

static int compare_tokens(const void *a, const void *b)
{
	const struct cap_token *x = a, *y = b;
	int order = compare_request(x, y);

	if (order)
		return order;
	if (x->index != y->index)
		return x->index < y->index ? -1 : 1;
	return x->order < y->order ? -1 : x->order > y->order;
}

static void differs_at(struct diff_request *r, const struct cap_token *a, const struct cap_token *b)
{
	r->differs = true;
	r->index = a && (!b || a->index <= b->index) ? a->index : b->index;
	r->has[SIDE_A] = a && a->index == r->index;
	r->has[SIDE_B] = b && b->index == r->index;
	r->id[SIDE_A] = a ? a->id : 0;
	r->id[SIDE_B] = b ? b->id : 0;
}

static int same_token(struct diff *d, struct diff_request *r, const struct cap_token *a, const struct cap_token *b,
	struct ds_err *err)
{
	struct place at[2] = { { a->meta_at, a->meta_len }, { b->meta_at, b->meta_len } };
	struct meta_difference m;
	bool differs = false;
	int rc;

	if (a->has_logprob && b->has_logprob) {
		r->logprobs++;
		r->logprob = fmax(r->logprob, fabs(a->logprob - b->logprob));
		r->over_logprobs += a->logprob != b->logprob && !near_logprob(d, a->logprob, b->logprob);
	} else {
		r->lone_logprobs[SIDE_A] += a->has_logprob;
		r->lone_logprobs[SIDE_B] += b->has_logprob;
	}
	if (!a->more && !b->more)
		return 0;
	rc = meta_pair(d, at, skip_token_key, &m, &differs, err);
	if (!rc && differs && !r->other++)
		r->first_other = m;
	return rc;
}

static int add_request(struct diff *d, struct diff_request **r, struct ds_err *err)
{
	struct diff_request *p = mem_more(d->requests, &d->request_cap, d->request_count, sizeof *p);

	if (!p)
		return err_nomem(err, d->request_count * sizeof *p, "requests");
	d->requests = p;
	*r = &d->requests[d->request_count++];
	memset(*r, 0, sizeof **r);
	return 0;
}

/* The tokens of one answer on both sides (n may be 0 on one). */
static int diff_answer(struct diff *d, const struct cap_token *t[2], const size_t n[2], struct ds_err *err)
{
	struct diff_request *r = NULL;
	const struct cap_token *any = n[0] ? t[0] : t[1];
	int rc = add_request(d, &r, err);
	size_t i[2] = { 0, 0 };

	if (rc)
		return rc;
	r->stream = any->stream;
	r->choice = any->choice;
	for (int s = 0; s < 2; s++) {
		r->tokens[s] = n[s];
		r->first[s] = n[s] ? t[s]->index : 0;
	}
	while (!rc && !r->differs && (i[0] < n[0] || i[1] < n[1])) {
		const struct cap_token *a = i[0] < n[0] ? &t[0][i[0]] : NULL, *b = i[1] < n[1] ? &t[1][i[1]] : NULL;
		bool lone[2] = { !b || (a && a->index < b->index), !a || (b && b->index < a->index) };

		if ((lone[0] || lone[1]) ? !d->o.common : a->id != b->id) {
			differs_at(r, a, b);
		} else if (!lone[0] && !lone[1]) {
			rc = same_token(d, r, a, b, err);
			r->same++;
		}
		i[0] += !lone[1];
		i[1] += !lone[0];
	}
	return rc;
}

static size_t answer_length(const struct capture *c, size_t at)
{
	size_t n = 0;

	while (at + n < c->token_count && compare_request(&c->tokens[at], &c->tokens[at + n]) == 0)
		n++;
	return n;
}

int diff_tokens(struct diff *d, struct ds_err *err)
{
	size_t at[2] = { 0, 0 }, n[2];
	int rc = 0;

	for (int s = 0; s < 2; s++)
		if (d->c[s].token_count)
			qsort(d->c[s].tokens, d->c[s].token_count, sizeof *d->c[s].tokens, compare_tokens);
	while (!rc && (at[0] < d->c[0].token_count || at[1] < d->c[1].token_count)) {
		const struct cap_token *t[2];
		int order;

		for (int s = 0; s < 2; s++)
			t[s] = at[s] < d->c[s].token_count ? &d->c[s].tokens[at[s]] : NULL;
		order = !t[0] ? 1 : !t[1] ? -1 : compare_request(t[0], t[1]);
		n[0] = order <= 0 ? answer_length(&d->c[0], at[0]) : 0;
		n[1] = order >= 0 ? answer_length(&d->c[1], at[1]) : 0;
		rc = diff_answer(d, t, n, err);
		at[0] += n[0];
		at[1] += n[1];
	}
	return rc;
}

/* ---- other frames ---- */

static int compare_frames(const void *a, const void *b)
{
	const struct cap_frame *x = a, *y = b;

	if (x->type != y->type)
		return x->type < y->type ? -1 : 1;
	if (x->turn != y->turn)
		return x->turn < y->turn ? -1 : 1;
	return x->ordinal < y->ordinal ? -1 : x->ordinal > y->ordinal;
}

static int add_frame(struct diff *d, const struct diff_frame *f, struct ds_err *err)
{
	struct diff_frame *p = mem_more(d->frames, &d->frame_cap, d->frame_count, sizeof *p);

	if (!p)
		return err_nomem(err, d->frame_count * sizeof *p, "frames that differ");
	d->frames = p;
	d->frames[d->frame_count++] = *f;
	return 0;
}

/* At least one of f is there: any. */
static int diff_frame(struct diff *d, const struct cap_frame *f[2], const struct cap_frame *any, struct ds_err *err)
{
	struct diff_frame out = { .type = any->type, .stream = any->stream, .ordinal = any->ordinal,
		.has = { f[0] != NULL, f[1] != NULL } };
	bool differs = true;
	int rc;

	if (f[0] && f[1]) {
		struct place at[2] = { { f[0]->meta_at, f[0]->meta_len }, { f[1]->meta_at, f[1]->meta_len } };

		d->frames_compared++;
		rc = meta_pair(d, at, skip_key, &out.d, &differs, err);
		if (rc || !differs)
			return rc;
	}
	return add_frame(d, &out, err);
}

int diff_frames(struct diff *d, struct ds_err *err)
{
	size_t at[2] = { 0, 0 };
	int rc = 0;

	for (int s = 0; s < 2; s++)
		if (d->c[s].frame_count)
			qsort(d->c[s].frames, d->c[s].frame_count, sizeof *d->c[s].frames, compare_frames);
	while (!rc && (at[0] < d->c[0].frame_count || at[1] < d->c[1].frame_count)) {
		const struct cap_frame *f[2];
		int order;

		for (int s = 0; s < 2; s++)
			f[s] = at[s] < d->c[s].frame_count ? &d->c[s].frames[at[s]] : NULL;
		order = !f[0] ? 1 : !f[1] ? -1 : compare_frames(f[0], f[1]);
		at[0] += order <= 0;
		at[1] += order >= 0;
		if (order < 0)
			f[1] = NULL;
		else if (order > 0)
			f[0] = NULL;
		rc = diff_frame(d, f, order <= 0 ? f[0] : f[1], err);
	}
	return rc;
}

#include "serve/token_choice.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* OpenAI's number for what has no finite logarithm. */
static const double NEVER = -9999.0;

/* ---- text ---- */

/* Shows bytes from the front while more than `hold` counted ones are held. */
static void release(struct token_choice *c, size_t hold)
{
	size_t n = 0;

	while (n < c->held.len && (!c->marks.p[n] || c->counted > hold))
		c->counted -= c->marks.p[n++] != 0;
	if (!n)
		return;
	detok_bytes(&c->detok, c->held.p, n, &c->text);
	memmove(c->held.p, c->held.p + n, c->held.len - n);
	memmove(c->marks.p, c->marks.p + n, c->marks.len - n);
	c->held.len -= n;
	c->marks.len -= n;
}

/* Drops bytes from the end until `n` counted ones are gone. */
static void cut(struct token_choice *c, size_t n)
{
	while (n) {
		bool counts = c->marks.p[--c->held.len] != 0;

		c->marks.len--;
		c->counted -= counts;
		n -= counts;
	}
}

static int add_text(struct token_choice *c, const struct tokenizer *t, const struct token *k, bool special,
	struct ds_err *err)
{
	const char *p, *counted;
	size_t n, m;
	char mark;

	tokenizer_text(t, k->t.id, false, &counted, &m);
	tokenizer_text(t, k->t.id, special, &p, &n);
	buf_add(&c->held, p, n);
	mark = m != 0;
	for (size_t i = 0; i < n; i++)
		buf_add(&c->marks, &mark, 1);
	if (c->held.nomem || c->marks.nomem)
		return err_nomem(err, n, "text");
	c->counted += m;
	if (k->hold > c->counted || k->cut > c->counted)
		return err_set(err, DS_DATA, "token %llu takes back %llu bytes of text, of which %zu are not shown",
			(unsigned long long)k->index, (unsigned long long)(k->cut ? k->cut : k->hold), c->counted);
	if (k->cut)
		cut(c, (size_t)k->cut);
	release(c, k->reason[0] ? 0 : (size_t)k->hold);
	return c->text.nomem ? err_nomem(err, n, "text") : 0;
}

void token_choice_end(struct token_choice *c, const char *reason)
{
	if (c->finished)
		return;
	release(c, 0);
	detok_end(&c->detok, &c->text);
	c->finished = true;
	snprintf(c->reason, sizeof(c->reason), "%s", reason);
}

/* ---- log-probabilities, in the shape of OpenAI's chat completions ---- */

static void put_score(struct jw *w, const struct tokenizer *t, uint32_t id, double logprob)
{
	const char *p = "\xef\xbf\xbd";
	size_t n = 3;
	bool known = tokenizer_bytes(t, id, true, &p, &n);

	jw_key(w, "token");
	jw_strn(w, p, n);
	jw_key(w, "logprob");
	jw_real(w, isinf(logprob) ? NEVER : logprob);
	jw_key(w, "bytes");
	if (!known) {
		jw_null(w);
		return;
	}
	jw_arr(w);
	for (size_t i = 0; i < n; i++)
		jw_uint(w, (unsigned char)p[i]);
	jw_arr_end(w);
}

/* A NaN is written as null: the token came without. */
static void add_score(struct token_choice *c, const struct tokenizer *t, const struct sampled *s, double logprob)
{
	struct jw w;

	if (c->scores.len)
		buf_add(&c->scores, ",", 1);
	jw_init(&w, &c->scores);
	jw_obj(&w);
	put_score(&w, t, s->id, logprob);
	jw_key(&w, "top_logprobs");
	jw_arr(&w);
	for (size_t i = 0; i < s->tops; i++) {
		jw_obj(&w);
		put_score(&w, t, s->top[i].id, s->top[i].logprob);
		jw_obj_end(&w);
	}
	jw_arr_end(&w);
	jw_obj_end(&w);
}

static int add_numbers(struct token_choice *c, const struct tokenizer *t, const struct token *k, struct ds_err *err)
{
	if (k->has_logprob && !c->scores.len)
		for (size_t i = 0; i < c->ids.n; i++)
			add_score(c, t, &(struct sampled){ .id = c->ids.v[i] }, (double)NAN);
	if (k->has_logprob || c->scores.len)
		add_score(c, t, &k->t, k->has_logprob ? k->t.logprob : (double)NAN);
	return ids_add(&c->ids, k->t.id) && !c->scores.nomem ? 0 : err_nomem(err, 64, "token ids");
}

int token_choice_add(struct token_choice *c, const struct tokenizer *t, const struct token *k, bool special, bool json,
	struct ds_err *err)
{
	int rc = add_text(c, t, k, special, err);

	if (!rc && json)
		rc = add_numbers(c, t, k, err);
	if (rc || !k->reason[0])
		return rc;
	c->stop = k->stop;
	token_choice_end(c, k->reason);
	return 0;
}

static void put_numbers(struct jw *w, const struct token_choice *c)
{
	jw_key(w, "ids");
	jw_arr(w);
	for (size_t i = 0; i < c->ids.n; i++)
		jw_uint(w, c->ids.v[i]);
	jw_arr_end(w);
	if (!c->scores.len)
		return;
	jw_key(w, "logprobs");
	jw_obj(w);
	jw_key(w, "content");
	jw_arr(w);
	jw_raw(w, c->scores.p, c->scores.len);
	jw_arr_end(w);
	jw_obj_end(w);
}

static void put_reason(struct jw *w, const struct token_choice *c)
{
	jw_key(w, "finish_reason");
	if (c->reason[0])
		jw_str(w, c->reason);
	else
		jw_null(w);
	if (!c->stop.n)
		return;
	jw_key(w, "stop_reason");
	jw_strn(w, c->stop.p, c->stop.n);
}

void token_choice_json(struct jw *w, const struct token_choice *c)
{
	jw_key(w, "text");
	jw_strn(w, c->text.p ? c->text.p : "", c->text.len);
	put_numbers(w, c);
	put_reason(w, c);
}

void token_choice_free(struct token_choice *c)
{
	buf_free(&c->held);
	buf_free(&c->marks);
	buf_free(&c->text);
	buf_free(&c->scores);
	ids_free(&c->ids);
}

/*
 * ds-token decode: token frames to text.  As text, requests come out in the order of their first frame: the first of
 * those that are not finished is written as its tokens arrive, what the others say waits for their turn.  As JSON
 * lines, each comes out when it is finished.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "serve/token.h"

enum { BUCKETS = 1024 };

struct answer {
	TAILQ_ENTRY(answer) order;
	LIST_ENTRY(answer) bucket;
	uint64_t stream;
	struct detok detok;
	struct buf text;         /* not yet written */
	struct ids ids;
	double *logprobs;        /* [ids.n], once one came */
	size_t logprob_cap;
	uint64_t tokens;
	struct ds_err *failed;   /* said already: what still comes is passed over, DONE or ERROR ends it */
	bool finished;
};

TAILQ_HEAD(answer_list, answer);
LIST_HEAD(answer_bucket, answer);

struct decode {
	struct tokenizing *x;
	bool connect;            /* frames of the input go on to a peer, whose frames are the answers */
	struct answer_list answers;
	struct answer_bucket buckets[BUCKETS];
	uint64_t vocab;          /* as the stream's HELLO states it; 0: it does not */
	struct source *src;
};

static struct answer_bucket *bucket(struct decode *d, uint64_t stream)
{
	return &d->buckets[(stream ^ stream >> 32) % BUCKETS];
}

static struct answer *find(struct decode *d, uint64_t stream)
{
	struct answer *a;

	LIST_FOREACH(a, bucket(d, stream), bucket)
		if (a->stream == stream)
			return a;
	return NULL;
}

/* The answer of a stream, begun if it is new.  A finished one that still waits for its turn is over: its stream begins
 * another. */
static struct answer *begin(struct decode *d, struct source *src, uint64_t stream, struct ds_err *err)
{
	struct answer *a = find(d, stream);

	if (a)
		return a;
	a = mem_calloc(1, sizeof(*a));
	if (!a) {
		err_nomem(err, sizeof(*a), "an answer");
		return NULL;
	}
	a->stream = stream;
	a->detok.special = d->x->o->special;
	TAILQ_INSERT_TAIL(&d->answers, a, order);
	LIST_INSERT_HEAD(bucket(d, stream), a, bucket);
	source_hold(src);
	return a;
}

static void answer_free(struct decode *d, struct answer *a)
{
	if (!a->finished)
		LIST_REMOVE(a, bucket);
	TAILQ_REMOVE(&d->answers, a, order);
	buf_free(&a->text);
	ids_free(&a->ids);
	free(a->logprobs);
	free(a->failed);
	free(a);
}

/* ---- text ---- */

static int write_text(struct source *src, struct answer *a)
{
	size_t n = a->text.len;

	a->text.len = 0;
	return n ? stage_write(src, a->text.p, n) : 0;
}

/* What may be written now: finished ones at the head of the row, and the one behind them as far as it has come. */
static int advance(struct decode *d, struct source *src)
{
	struct answer *a;

	while ((a = TAILQ_FIRST(&d->answers))) {
		bool finished = a->finished;
		if (write_text(src, a))
			return DS_IO;
		if (!finished)
			break;
		answer_free(d, a);
	}
	return 0;
}

static void finish_text(struct answer *a)
{
	detok_end(&a->detok, &a->text);
	buf_add(&a->text, "\n", 1);
}

/* ---- JSON lines ---- */

static void put_usage(struct jw *w, const struct usage *u)
{
	jw_key(w, "usage");
	jw_obj(w);
	jw_key(w, "prompt_tokens");
	jw_uint(w, u->prompt);
	jw_key(w, "completion_tokens");
	jw_uint(w, u->completion);
	jw_key(w, "total_tokens");
	jw_uint(w, u->prompt + u->completion);
	jw_key(w, "prompt_cache_hit_tokens");
	jw_uint(w, u->hit);
	jw_key(w, "prompt_cache_miss_tokens");
	jw_uint(w, u->miss);
	jw_obj_end(w);
}

static void put_numbers(struct jw *w, const struct answer *a)
{
	jw_key(w, "ids");
	jw_arr(w);
	for (size_t i = 0; i < a->ids.n; i++)
		jw_uint(w, a->ids.v[i]);
	jw_arr_end(w);
	if (!a->logprobs)
		return;
	jw_key(w, "logprobs");
	jw_arr(w);
	for (size_t i = 0; i < a->ids.n; i++)
		jw_real(w, a->logprobs[i]);
	jw_arr_end(w);
}

/* done or error may be NULL; both: the input ended before the answer did. */
static int write_json(struct source *src, struct answer *a, const char *id, const struct done *done,
	const struct error_message *error)
{
	struct buf b = { 0 };
	struct jw w;
	int rc;

	detok_end(&a->detok, &a->text);
	jw_init(&w, &b);
	jw_obj(&w);
	jw_key(&w, "id");
	jw_str(&w, id);
	jw_key(&w, "text");
	jw_strn(&w, a->text.p ? a->text.p : "", a->text.len);
	put_numbers(&w, a);
	jw_key(&w, "finish_reason");
	if (done)
		jw_str(&w, done->reason);
	else if (error)
		jw_str(&w, "error");
	else
		jw_null(&w);
	if (done)
		put_usage(&w, &done->usage);
	if (error) {
		jw_key(&w, "error");
		jw_obj(&w);
		jw_key(&w, "code");
		jw_uint(&w, error->code);
		jw_key(&w, "message");
		jw_str(&w, error->text);
		jw_obj_end(&w);
	}
	jw_obj_end(&w);
	buf_add(&b, "\n", 1);
	rc = b.nomem ? DS_OS : stage_write(src, b.p, b.len);
	buf_free(&b);
	return rc;
}

/* ---- frames ---- */

/* The request's name: said by the frame, or one that ds-token gives by default, or the stream's number. */
static void name_of(const struct frame *f, uint64_t stream, char id[REQUEST_ID_MAX + 1])
{
	if (f && meta_cstr(f->meta, "id", id, REQUEST_ID_MAX + 1) == META_OK && id[0])
		return;
	for (unsigned k = 0; k < 65536; k++) {
		int n = snprintf(id, REQUEST_ID_MAX + 1, "r%u", k);
		if (frame_stream_id(id, (size_t)n) == stream)
			return;
	}
	snprintf(id, REQUEST_ID_MAX + 1, "%016llx", (unsigned long long)stream);
}

/* The answer is over: it is written, or waits for its turn. */
static int finish(struct decode *d, struct source *src, struct answer *a, const char *id, const struct done *done,
	const struct error_message *error)
{
	LIST_REMOVE(a, bucket);
	a->finished = true;
	source_release(src);
	if (!d->x->o->jsonl) {
		finish_text(a);
		return advance(d, src);
	}
	if (write_json(src, a, id, done, error))
		return DS_OS;
	answer_free(d, a);
	return 0;
}

static int add_token(struct decode *d, struct answer *a, const struct token *t, struct ds_err *err)
{
	if (detok_add(&a->detok, d->x->t, t->t.id, &a->text, err))
		return err->code;
	if (!d->x->o->jsonl)
		return 0;
	if ((t->has_logprob || a->logprobs) && a->ids.n >= a->logprob_cap) {
		size_t cap = a->ids.n ? a->ids.n * 2 : 64;
		double *v = mem_realloc(a->logprobs, cap, sizeof(*v));
		if (!v)
			return err_nomem(err, cap * sizeof(*v), "log-probabilities");
		for (size_t i = a->logprob_cap; i < cap; i++)
			v[i] = (double)NAN;
		a->logprobs = v;
		a->logprob_cap = cap;
	}
	if (t->has_logprob)
		a->logprobs[a->ids.n] = t->t.logprob;
	return ids_add(&a->ids, t->t.id) ? 0 : err_nomem(err, 64, "token ids");
}

/* On stderr, and in the exit status. */
static void say(struct source *src, const struct answer *a, const char *id, const struct ds_err *why)
{
	struct ds_err named = *why;

	err_prefix(&named, "request '%s'", id);
	stage_error(src, a->stream, id, false, &named);
}

static void error_of(const struct ds_err *why, struct error_message *m)
{
	memset(m, 0, sizeof(*m));
	if (!why)
		return;
	m->code = (uint64_t)why->code;
	snprintf(m->text, sizeof(m->text), "%s", why->text);
}

static int finish_failed(struct decode *d, struct source *src, struct answer *a, const char *id,
	const struct ds_err *why)
{
	struct error_message m;

	error_of(why, &m);
	return finish(d, src, a, id, NULL, &m);
}

static int fail(struct decode *d, struct source *src, struct answer *a, const char *id, const struct ds_err *why)
{
	say(src, a, id, why);
	return finish_failed(d, src, a, id, why);
}

/* A token that the model cannot have made: its request has failed, though more of it will come. */
static int bad_token(struct source *src, struct answer *a, const struct token *t, uint64_t vocab, struct ds_err *err)
{
	char id[REQUEST_ID_MAX + 1];

	a->failed = mem_calloc(1, sizeof(*a->failed));
	if (!a->failed)
		return err_nomem(err, sizeof(*a->failed), "an answer");
	err_set(a->failed, DS_DATA, "token %llu: id %u is not below %llu, the model's vocabulary",
		(unsigned long long)t->index, t->t.id, (unsigned long long)vocab);
	name_of(NULL, a->stream, id);
	say(src, a, id, a->failed);
	return 0;
}

static int on_token(struct decode *d, struct source *src, const struct frame *f, struct ds_err *err)
{
	uint64_t vocab = d->vocab ? d->vocab : d->x->vocab;
	struct answer *a;
	struct token t;

	if (token_get(f, &t, err))
		return err->code;
	a = begin(d, src, f->stream, err);
	if (!a)
		return err->code;
	if (t.index != a->tokens)
		return err_set(err, DS_DATA, "frame %llu (token): stream %016llx goes on with token %llu, %llu is due",
			(unsigned long long)f->number,
			(unsigned long long)f->stream, (unsigned long long)t.index, (unsigned long long)a->tokens);
	a->tokens++;
	if (a->failed)
		return 0;
	if (vocab && t.t.id >= vocab)
		return bad_token(src, a, &t, vocab, err);
	if (add_token(d, a, &t, err))
		return err_prefix(err, "frame %llu (token)", (unsigned long long)f->number);
	return d->x->o->jsonl ? 0 : advance(d, src);
}

static int on_done(struct decode *d, struct source *src, const struct frame *f, struct ds_err *err)
{
	struct answer *a;
	struct done done;
	struct ds_err why;

	if (done_get(f, &done, err))
		return err->code;
	a = begin(d, src, f->stream, err);
	if (!a)
		return err->code;
	if (a->failed)
		return finish_failed(d, src, a, done.id, a->failed);
	if (done.usage.completion != a->tokens) {
		err_set(&why, DS_DATA, "%llu tokens came, %llu were made", (unsigned long long)a->tokens,
			(unsigned long long)done.usage.completion);
		return fail(d, src, a, done.id, &why);
	}
	return finish(d, src, a, done.id, &done, NULL);
}

static int on_error(struct decode *d, struct source *src, const struct frame *f, struct ds_err *err)
{
	char id[REQUEST_ID_MAX + 1];
	struct error_message m;
	struct answer *a;
	struct ds_err why;

	if (error_get(f, &m, err))
		return err->code;
	if (!f->stream) /* about the whole connection */
		return err_set(err, (int)m.code, "the stream says: %s", m.text);
	a = begin(d, src, f->stream, err);
	if (!a)
		return err->code;
	name_of(f, f->stream, id);
	if (a->failed)
		return finish_failed(d, src, a, id, a->failed);
	if (d->connect) /* the stage has said it, and remembers the code */
		return finish(d, src, a, id, NULL, &m);
	err_set(&why, (int)m.code, "%s", m.text);
	return fail(d, src, a, id, &why);
}

static int decode_frame(void *ctx, struct source *src, struct frame *f, struct ds_err *err)
{
	struct decode *d = ctx;
	int rc;

	d->src = src;
	switch (f->type) {
	case FRAME_TOKEN: rc = on_token(d, src, f, err); break;
	case FRAME_DONE:  rc = on_done(d, src, f, err); break;
	case FRAME_ERROR: rc = on_error(d, src, f, err); break;
	case FRAME_CANCEL: return 0; /* whoever makes the tokens has seen it and says what became of the request */
	default:
		if (d->connect && (f->type == FRAME_REQUEST || f->type == FRAME_KV || f->type == FRAME_PREFILLED))
			return stage_forward(src, f);
		if (f->flags & FRAME_DROPPABLE)
			return 0;
		return err_set(err, DS_DATA, "frame %llu (%s) is not for ds-token: tokens are made by ds-decode",
			(unsigned long long)f->number,
			frame_type_name(f->type));
	}
	if (rc && !err->text[0])
		err_nomem(err, 64, "an answer");
	return rc;
}

static int decode_hello(void *ctx, struct source *src, const struct hello *h, struct ds_err *err)
{
	struct decode *d = ctx;

	d->vocab = h->vocab;
	if (h->vocab && tokenizer_vocab(d->x->t) > h->vocab)
		return err_set(err, DS_PROTO, "'%s' is of a model with a vocabulary of %llu, the tokenizer of '%s' "
			"has %zu", source_name(src),
			(unsigned long long)h->vocab, d->x->o->model, tokenizer_vocab(d->x->t));
	return 0;
}

/* The input was cut: what came of the answers is still shown, all of it. */
static void decode_gone(void *ctx, struct source *src, bool complete)
{
	struct decode *d = ctx;
	char id[REQUEST_ID_MAX + 1];
	struct error_message m;
	struct answer *a;

	(void)complete;
	while ((a = TAILQ_FIRST(&d->answers))) {
		if (!a->finished) {
			if (d->x->o->jsonl) {
				name_of(NULL, a->stream, id);
				error_of(a->failed, &m);
				write_json(src, a, id, NULL, a->failed ? &m : NULL);
				a->text.len = 0;
			} else {
				finish_text(a);
			}
		}
		write_text(src, a);
		answer_free(d, a);
	}
}

static const struct stage_ops decode_ops = { .frame = decode_frame, .hello = decode_hello, .gone = decode_gone };

int token_decode(struct tokenizing *x, const struct stage_config *stage, struct ds_err *err)
{
	struct decode d = { .x = x, .connect = stage->opt.connect != NULL };
	struct stage_config cfg = *stage;
	struct answer *a;
	int rc;

	TAILQ_INIT(&d.answers);
	cfg.ops = &decode_ops;
	cfg.ctx = &d;
	cfg.raw_output = true;
	rc = stage_run(&cfg, err);
	while ((a = TAILQ_FIRST(&d.answers)))
		answer_free(&d, a);
	return rc;
}

/*
 * ds-token decode: token frames to text.  As text, requests come out in the order of their first frame and a request's
 * choices in theirs: the first of those that are not finished is written as its tokens arrive, what the others say
 * waits for their turn.  As JSON lines, each request comes out when it is finished, a line for each choice.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "serve/token.h"
#include "serve/token_choice.h"

enum { BUCKETS = 1024 };

struct answer {
	TAILQ_ENTRY(answer) order;
	LIST_ENTRY(answer) bucket;
	uint64_t stream;
	struct token_choice *choices; /* [n] */
	size_t n, turn;          /* turn: the first choice that is not written to its end */
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
	for (size_t i = 0; i < a->n; i++)
		token_choice_free(&a->choices[i]);
	free(a->choices);
	free(a->failed);
	free(a);
}

/* Choice number i, and all before it. */
static struct token_choice *choice(struct answer *a, size_t i, struct ds_err *err)
{
	struct token_choice *v;

	if (i < a->n)
		return &a->choices[i];
	v = mem_realloc(a->choices, i + 1, sizeof(*v));
	if (!v) {
		err_nomem(err, (i + 1) * sizeof(*v), "an answer");
		return NULL;
	}
	memset(v + a->n, 0, (i + 1 - a->n) * sizeof(*v));
	a->choices = v;
	a->n = i + 1;
	return &v[i];
}

/* ---- text ---- */

/* What may be written of an answer now: its choices in order, each behind the end of the one before. */
static int write_text(struct decode *d, struct source *src, struct answer *a)
{
	const struct buf *end = &d->x->separator;

	for (; a->turn < a->n; a->turn++) {
		struct token_choice *c = &a->choices[a->turn];
		size_t n = c->text.len;

		c->text.len = 0;
		if (n && stage_write(src, c->text.p, n))
			return DS_IO;
		if (!c->finished)
			return 0;
		if (end->len && stage_write(src, end->p, end->len))
			return DS_IO;
	}
	return 0;
}

/* Finished ones at the head of the row, and the one behind them as far as it has come. */
static int advance(struct decode *d, struct source *src)
{
	struct answer *a;

	while ((a = TAILQ_FIRST(&d->answers))) {
		if (write_text(d, src, a))
			return DS_IO;
		if (!a->finished)
			break;
		answer_free(d, a);
	}
	return 0;
}

/* ---- JSON lines ---- */

/* Of one choice; the prompt is the request's. */
static void put_usage(struct jw *w, const struct usage *u, uint64_t tokens)
{
	jw_key(w, "usage");
	jw_obj(w);
	jw_key(w, "prompt_tokens");
	jw_uint(w, u->prompt);
	jw_key(w, "completion_tokens");
	jw_uint(w, tokens);
	jw_key(w, "total_tokens");
	jw_uint(w, u->prompt + tokens);
	jw_key(w, "prompt_cache_hit_tokens");
	jw_uint(w, u->hit);
	jw_key(w, "prompt_cache_miss_tokens");
	jw_uint(w, u->miss);
	jw_obj_end(w);
}

static void put_error(struct jw *w, const struct error_message *error)
{
	jw_key(w, "error");
	jw_obj(w);
	jw_key(w, "code");
	jw_uint(w, error->code);
	jw_key(w, "message");
	jw_str(w, error->text);
	jw_key(w, "retryable");
	jw_bool(w, error->retryable);
	jw_obj_end(w);
}

/* A line for each choice.  done or error may be NULL; both: the input ended before the answer did. */
static int write_json(struct source *src, const struct answer *a, const char *id, const struct done *done,
	const struct error_message *error)
{
	struct buf b = { 0 };
	struct jw w;
	int rc;

	for (size_t i = 0; i < a->n; i++) {
		const struct token_choice *c = &a->choices[i];

		jw_init(&w, &b);
		jw_obj(&w);
		jw_key(&w, "id");
		jw_str(&w, id);
		jw_key(&w, "index");
		jw_uint(&w, i);
		token_choice_json(&w, c);
		if (done)
			put_usage(&w, &done->usage, c->tokens);
		if (error)
			put_error(&w, error);
		jw_obj_end(&w);
		buf_add(&b, "\n", 1);
	}
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

/* Why choice i ended where its tokens did not say it. */
static const char *reason_of(const struct done *done, const struct error_message *error, size_t i)
{
	if (done)
		return i < done->choice_count ? done->choices[i].reason : done->reason;
	return error ? "error" : "";
}

static int end_choices(struct answer *a, const struct done *done, const struct error_message *error)
{
	struct ds_err err;

	if (!choice(a, 0, &err)) /* there is one, if an empty one */
		return DS_OS;
	for (size_t i = 0; i < a->n; i++)
		token_choice_end(&a->choices[i], reason_of(done, error, i));
	return 0;
}

/* The answer is over: it is written, or waits for its turn. */
static int finish(struct decode *d, struct source *src, struct answer *a, const char *id, const struct done *done,
	const struct error_message *error)
{
	LIST_REMOVE(a, bucket);
	a->finished = true;
	source_release(src);
	if (end_choices(a, done, error))
		return DS_OS;
	if (!d->x->o->jsonl)
		return advance(d, src);
	if (write_json(src, a, id, done, error))
		return DS_OS;
	answer_free(d, a);
	return 0;
}

/* On stderr, and in the exit status.  A stage that says the request's name itself is not repeated. */
static void say(struct source *src, const struct answer *a, const char *id, const struct ds_err *why)
{
	struct ds_err named = *why;
	char name[REQUEST_ID_MAX + 16];
	int n = snprintf(name, sizeof(name), "request '%s'", id);

	if (strncmp(named.text, name, (size_t)n))
		err_prefix(&named, "%s", name);
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

/* A token that the model or its stage cannot have made: its request has failed, though more of it will come. */
static int spoil(struct source *src, struct answer *a, const struct ds_err *why, struct ds_err *err)
{
	char id[REQUEST_ID_MAX + 1];

	a->failed = mem_calloc(1, sizeof(*a->failed));
	if (!a->failed)
		return err_nomem(err, sizeof(*a->failed), "an answer");
	*a->failed = *why;
	name_of(NULL, a->stream, id);
	say(src, a, id, a->failed);
	return 0;
}

/* The token's place in its choice; DS_DATA where it is not the next one. */
static struct token_choice *place(struct answer *a, const struct frame *f, const struct token *t, struct ds_err *err)
{
	struct token_choice *c = choice(a, (size_t)t->choice, err);

	if (c && (c->tokens != t->index || c->finished)) {
		err_set(err, DS_DATA, "frame %llu (token): stream %016llx, choice %llu goes on with token %llu, "
			"%s%llu is due",
			(unsigned long long)f->number, (unsigned long long)f->stream, (unsigned long long)t->choice,
			(unsigned long long)t->index, c->finished ? "it ended where " : "",
			(unsigned long long)c->tokens);
		return NULL;
	}
	return c;
}

static int on_token(struct decode *d, struct source *src, const struct frame *f, struct ds_err *err)
{
	uint64_t vocab = d->vocab ? d->vocab : d->x->vocab;
	struct token_choice *c;
	struct ds_err why;
	struct answer *a;
	struct token t;
	int rc = 0;

	if (token_get(f, &t, err))
		return err->code;
	a = begin(d, src, f->stream, err);
	if (!a)
		return err->code;
	c = place(a, f, &t, err);
	if (!c)
		return err->code;
	c->tokens++;
	if (a->failed)
		return 0;
	if (vocab && t.t.id >= vocab)
		rc = err_set(&why, DS_DATA, "token %llu: id %u is not below %llu, the model's vocabulary",
			(unsigned long long)t.index, t.t.id, (unsigned long long)vocab);
	else
		rc = token_choice_add(c, d->x->t, &t, d->x->o->special, d->x->o->jsonl, &why);
	if (rc == DS_DATA)
		return spoil(src, a, &why, err);
	if (rc) {
		*err = why;
		return err_prefix(err, "frame %llu (token)", (unsigned long long)f->number);
	}
	return d->x->o->jsonl ? 0 : advance(d, src);
}

/* What came is what was made. */
static int check_counts(const struct answer *a, const struct done *done, struct ds_err *why)
{
	uint64_t tokens = 0;

	for (size_t i = 0; i < a->n; i++)
		tokens += a->choices[i].tokens;
	if (done->usage.completion != tokens)
		return err_set(why, DS_DATA, "%llu tokens came, %llu were made", (unsigned long long)tokens,
			(unsigned long long)done->usage.completion);
	if (!done->choice_count)
		return 0;
	if (done->choice_count != a->n)
		return err_set(why, DS_DATA, "%zu choices came, %zu were made", a->n, done->choice_count);
	for (size_t i = 0; i < a->n; i++)
		if (a->choices[i].tokens != done->choices[i].completion)
			return err_set(why, DS_DATA, "choice %zu: %llu tokens came, %llu were made", i,
				(unsigned long long)a->choices[i].tokens,
				(unsigned long long)done->choices[i].completion);
	return 0;
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
	if (check_counts(a, &done, &why))
		return fail(d, src, a, done.id, &why);
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
	say(src, a, id, &why);
	return finish(d, src, a, id, NULL, &m);
}

/* The peer is lost, which the stage says. */
static int decode_unanswered(void *ctx, struct source *src, uint64_t stream, const char *id, const struct ds_err *why,
	struct ds_err *err)
{
	struct decode *d = ctx;
	char name[REQUEST_ID_MAX + 1];
	struct error_message m;
	struct answer *a = begin(d, src, stream, err);

	if (!a)
		return err->code;
	snprintf(name, sizeof(name), "%s", id);
	if (!*name)
		name_of(NULL, stream, name);
	error_of(a->failed ? a->failed : why, &m);
	m.retryable = !a->failed;
	return finish(d, src, a, name, NULL, &m) ? err_nomem(err, 64, "an answer") : 0;
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
		return err_set(err, DS_DATA, "'%s': frame %llu: a '%s' frame is not for ds-token: tokens are made by "
			"ds-decode", source_name(src), (unsigned long long)f->number, frame_type_name(f->type));
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
		error_of(a->failed, &m);
		if (!a->finished)
			end_choices(a, NULL, a->failed ? &m : NULL);
		if (d->x->o->jsonl) {
			name_of(NULL, a->stream, id);
			write_json(src, a, id, NULL, a->failed ? &m : NULL);
		} else {
			write_text(d, src, a);
		}
		answer_free(d, a);
	}
}

/* An answer is held until its last frame. */
static bool decode_incomplete(void *ctx, struct source *src)
{
	(void)ctx;
	(void)src;
	return true;
}

static const struct stage_ops decode_ops = { .frame = decode_frame, .hello = decode_hello,
	.unanswered = decode_unanswered, .gone = decode_gone, .incomplete = decode_incomplete };

int token_decode(struct tokenizing *x, const struct stage_config *stage, struct ds_err *err)
{
	struct decode d = { .x = x, .connect = stage->opt.connect != NULL };
	struct stage_config cfg = *stage;
	struct answer *a;
	int rc;

	if (x->o->jsonl && strcmp(x->o->separator, TOKEN_SEPARATOR))
		return err_set(err, DS_USAGE, "--separator is for plain text; with --jsonl each answer is a line");
	TAILQ_INIT(&d.answers);
	cfg.ops = &decode_ops;
	cfg.ctx = &d;
	cfg.raw_output = true;
	rc = stage_run(&cfg, err);
	while ((a = TAILQ_FIRST(&d.answers)))
		answer_free(&d, a);
	return rc;
}

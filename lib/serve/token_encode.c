/* ds-token encode, tokens and render: text comes in. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/log.h"
#include "base/time.h"
#include "base/utf8.h"
#include "serve/token.h"

enum { LINE_MAX_BYTES = 256 << 20 };

/* Stream ids that were used: open addressing, 0 is free. */
struct seen { uint64_t *v; size_t n, cap; };

struct encode {
	struct tokenizing *x;
	struct buf text;           /* of a line, or of everything, that is not complete */
	size_t scanned;            /* so much of it is known to hold no newline */
	size_t count;              /* requests so far */
	char prefix[40];           /* what ids begin with if nothing else is said */
	struct ids ids;
	struct seen seen;
	struct meta_builder *meta;
	uint64_t max_frame;
	bool warned;               /* of choices that will be the same */
};

static uint64_t *slot(const struct seen *s, uint64_t id)
{
	size_t i = (size_t)id & (s->cap - 1);

	while (s->v[i] && s->v[i] != id)
		i = (i + 1) & (s->cap - 1);
	return &s->v[i];
}

/* False without memory. */
static bool grow(struct seen *s)
{
	struct seen old = *s;

	if (s->cap && s->n < s->cap / 2)
		return true;
	s->cap = s->cap ? s->cap * 2 : 256;
	s->v = mem_calloc(s->cap, sizeof(*s->v));
	if (!s->v) {
		*s = old;
		return false;
	}
	for (size_t i = 0; i < old.cap; i++)
		if (old.v[i])
			*slot(s, old.v[i]) = old.v[i];
	free(old.v);
	return true;
}

/* A second request of the same id would answer for the first one too: the input as a whole is wrong. */
static int use_id(struct encode *e, const char *id, uint64_t stream, struct ds_err *err)
{
	if (!grow(&e->seen))
		return err_nomem(err, e->seen.cap * 16, "request ids");
	if (*slot(&e->seen, stream))
		return err_set(err, DS_DATA, "request id '%s' was used before", id);
	*slot(&e->seen, stream) = stream;
	e->seen.n++;
	return 0;
}

static int send_request(struct encode *e, struct source *src, uint64_t stream, const struct request *r)
{
	uint64_t shape = e->ids.n;
	struct iovec iov = { .iov_base = e->ids.v, .iov_len = e->ids.n * sizeof(*e->ids.v) };

	stage_request_id(src, stream, r->id);
	meta_reset(e->meta);
	request_put(e->meta, r);
	meta_put_tensor(e->meta, "tokens", DT_U32, "token", &shape, 1, 0, NULL);
	return stage_send(src, FRAME_REQUEST, stream, e->meta, &iov, 1, true);
}

/* A seed for a request that names none.  It is in the frame, so that a capture gives the same answer again; 53 bits
 * pass through every JSON reader.  Where nothing is drawn it stays 0, so that the same text makes the same bytes. */
static int choose_seed(struct sampling *s, struct ds_err *err)
{
	if (s->seed != TOKEN_NO_SEED)
		return 0;
	s->seed = 0;
	if (s->temperature > 0.0 && getrandom(&s->seed, sizeof(s->seed), 0) != sizeof(s->seed))
		return err_errno(err, DS_OS, "cannot draw a seed");
	s->seed >>= 11;
	return 0;
}

/* Allowed, as it may be a script that varies the temperature; vLLM refuses it. */
static void warn_same(struct encode *e, const struct request *r)
{
	if (e->warned || r->n < 2 || r->sampling.temperature > 0.0)
		return;
	e->warned = true;
	log_msg(LOG_WARN, "request '%s': at temperature 0 its %llu answers are the same; give a --temperature", r->id,
		(unsigned long long)r->n);
}

static int encode_one(struct encode *e, struct source *src, const char *text, size_t n, struct ds_err *err)
{
	const struct token_options *o = e->x->o;
	struct request r = e->x->defaults;
	size_t number = e->count++;
	struct ds_err why = { 0 };
	uint64_t stream;
	int rc;

	if (o->id && !o->lines && !o->jsonl)
		snprintf(r.id, sizeof(r.id), "%s", o->id);
	else
		snprintf(r.id, sizeof(r.id), "%s%zu", o->id ? o->id : e->prefix, number);
	e->ids.n = 0;
	rc = o->jsonl ? token_from_json(e->x, text, n, &r, &e->ids, &why) : token_from_text(e->x, text, n, &e->ids,
		&why);
	if (!rc && e->ids.n * sizeof(*e->ids.v) > e->max_frame)
		rc = err_set(&why, DS_DATA, "the prompt has %zu tokens, more than --max-frame lets into a frame",
			e->ids.n);
	if (!rc)
		rc = choose_seed(&r.sampling, &why);
	stream = frame_stream_id(r.id, strlen(r.id));
	if (use_id(e, r.id, stream, err))
		return err_prefix(err, "line %zu", number + 1);
	if (rc && (o->lines || o->jsonl))
		err_prefix(&why, "line %zu", number + 1);
	if (rc)
		return stage_error(src, stream, r.id, false, &why);
	warn_same(e, &r);
	r.arrival_ns = (uint64_t)time_wall_ns();
	return send_request(e, src, stream, &r);
}

static bool blank(const char *p, size_t n)
{
	while (n && (*p == ' ' || *p == '\t' || *p == '\r')) {
		p++;
		n--;
	}
	return !n;
}

static int encode_line(struct encode *e, struct source *src, const char *p, size_t n, struct ds_err *err)
{
	if (blank(p, n)) {
		e->count++; /* lines are counted, so that messages name them as an editor does */
		return 0;
	}
	return encode_one(e, src, p, n, err);
}

/* Every complete line of what came; what remains waits in e->text, and is not looked through again. */
static int encode_lines(struct encode *e, struct source *src, bool eof, struct ds_err *err)
{
	size_t done = 0, at = e->scanned;
	const char *nl;

	while (at < e->text.len && (nl = memchr(e->text.p + at, '\n', e->text.len - at))) {
		if (encode_line(e, src, e->text.p + done, (size_t)(nl - e->text.p) - done, err))
			return err->code;
		at = done = (size_t)(nl - e->text.p) + 1;
	}
	if (eof && done < e->text.len && encode_line(e, src, e->text.p + done, e->text.len - done, err))
		return err->code;
	if (done) {
		memmove(e->text.p, e->text.p + done, e->text.len - done);
		e->text.len -= done;
	}
	e->scanned = e->text.len;
	return 0;
}

static int gather(struct encode *e, const char *p, size_t n, struct ds_err *err)
{
	buf_add(&e->text, p, n);
	if (e->text.nomem)
		return err_nomem(err, e->text.len + n, "the input");
	return e->text.len > LINE_MAX_BYTES ? err_set(err, DS_DATA, "a prompt of over %d MiB",
		LINE_MAX_BYTES >> 20) : 0;
}

static void drop_newline(struct buf *b)
{
	b->len -= b->len && b->p[b->len - 1] == '\n';
}

static int encode_raw(void *ctx, struct source *src, const char *p, size_t n, bool eof, struct ds_err *err)
{
	struct encode *e = ctx;

	if (gather(e, p, n, err))
		return err->code;
	if (e->x->o->lines || e->x->o->jsonl)
		return n || eof ? encode_lines(e, src, eof, err) : 0;
	if (!eof)
		return 0;
	drop_newline(&e->text);
	return encode_one(e, src, e->text.p ? e->text.p : "", e->text.len, err);
}

/* ---- tokens: "id<TAB>piece" lines ---- */

/* Printable as it is; what is not, or not whole characters, in C's escapes. */
static void put_piece(struct buf *b, const char *p, size_t n)
{
	static const char from[] = "\n\t\r\\", to[] = "ntr\\";

	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)p[i];
		const char *simple = c ? strchr(from, c) : NULL;
		if (simple)
			buf_printf(b, "\\%c", to[simple - from]);
		else if (c < 0x20 || c == 0x7f)
			buf_printf(b, "\\x%02x", c);
		else
			buf_add(b, p + i, 1);
	}
}

static int tokens_raw(void *ctx, struct source *src, const char *text, size_t len, bool eof, struct ds_err *err)
{
	struct encode *e = ctx;
	struct buf b = { 0 };
	int rc = gather(e, text, len, err);
	size_t bad;

	if (rc || !eof)
		return rc;
	drop_newline(&e->text);
	rc = token_from_text(e->x, e->text.p ? e->text.p : "", e->text.len, &e->ids, err);
	for (size_t i = 0; !rc && i < e->ids.n; i++) {
		const char *p = "";
		size_t n = 0;
		tokenizer_bytes(e->x->t, e->ids.v[i], true, &p, &n);
		buf_printf(&b, "%u\t", e->ids.v[i]);
		if (utf8_valid(p, n, &bad))
			put_piece(&b, p, n);
		else
			for (size_t k = 0; k < n; k++)
				buf_printf(&b, "\\x%02x", (unsigned)(unsigned char)p[k]);
		buf_add(&b, "\n", 1);
	}
	if (!rc)
		rc = b.nomem ? err_nomem(err, b.len, "text") : stage_write(src, b.p, b.len);
	buf_free(&b);
	return rc;
}

static int render_raw(void *ctx, struct source *src, const char *text, size_t len, bool eof, struct ds_err *err)
{
	struct encode *e = ctx;
	struct buf b = { 0 };
	int rc = gather(e, text, len, err);

	if (rc || !eof)
		return rc;
	if (e->x->o->chat)
		drop_newline(&e->text);
	rc = e->x->o->chat ? token_render_text(e->x, e->text.p ? e->text.p : "", e->text.len, &b, err) :
		token_render_json(e->x, e->text.p ? e->text.p : "", e->text.len, &b, err);
	if (!rc)
		rc = stage_write(src, b.p, b.len);
	buf_free(&b);
	return rc;
}

/* ---- running ---- */

static const struct stage_ops encode_ops = { .raw = encode_raw };
static const struct stage_ops tokens_ops = { .raw = tokens_raw };
static const struct stage_ops render_ops = { .raw = render_raw };

static int run(struct tokenizing *x, const struct stage_config *stage, const struct stage_ops *ops, struct ds_err *err)
{
	struct encode e = { .x = x, .meta = meta_new(), .max_frame = stage->opt.max_frame };
	struct stage_config cfg = *stage;
	int rc;

	/* A service knows requests by their ids alone: those of two clients must not meet. */
	if (stage->opt.connect)
		snprintf(e.prefix, sizeof(e.prefix), "r-%llx-%x-", (unsigned long long)time_wall_ns(),
			(unsigned)getpid());
	else
		snprintf(e.prefix, sizeof(e.prefix), "r");
	cfg.ops = ops;
	cfg.ctx = &e;
	cfg.raw_input = true;
	cfg.raw_output = ops != &encode_ops;
	cfg.hello.vocab = x->vocab;
	rc = e.meta ? stage_run(&cfg, err) : err_nomem(err, 64, "frame meta");
	if (e.meta)
		meta_free(e.meta);
	buf_free(&e.text);
	ids_free(&e.ids);
	free(e.seen.v);
	return rc;
}

int token_encode(struct tokenizing *x, const struct stage_config *stage, struct ds_err *err)
{
	const struct token_options *o = x->o;

	if (o->lines && o->jsonl)
		return err_set(err, DS_USAGE, "--lines and --jsonl exclude each other");
	if (o->system && !o->chat && !o->jsonl)
		return err_set(err, DS_USAGE, "--system is for --chat and --jsonl");
	if (o->id && (!*o->id || strlen(o->id) > REQUEST_ID_MAX - (o->lines || o->jsonl ? 20 : 0)))
		return err_set(err, DS_USAGE, "--id: not a text of 1 to %d bytes (44 where numbers follow)",
			REQUEST_ID_MAX);
	if (o->id && !utf8_valid(o->id, strlen(o->id), NULL))
		return err_set(err, DS_USAGE, "--id: not UTF-8");
	return run(x, stage, &encode_ops, err);
}

int token_tokens(struct tokenizing *x, const struct stage_config *stage, struct ds_err *err) { return run(x, stage,
	&tokens_ops, err); }
int token_render(struct tokenizing *x, const struct stage_config *stage, struct ds_err *err) { return run(x, stage,
	&render_ops, err); }

#include "frame/capture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "frame/input.h"

/* ---- lists that grow ---- */

static int no_room(const struct capture *c, struct ds_err *err)
{
	return err_nomem(err, (c->row_count + c->token_count + c->frame_count) * sizeof *c->rows,
		"the index of a capture");
}

/* ---- files ---- */

static int temporary(int *fd, struct ds_err *err)
{
	const char *dir = getenv("TMPDIR");
	char path[4096];

	if (!dir || !*dir || strlen(dir) > sizeof path - 40)
		dir = "/tmp";
	snprintf(path, sizeof path, "%s/ds-frame.XXXXXX", dir);
	*fd = mkostemp(path, O_CLOEXEC);
	if (*fd < 0)
		return err_errno(err, DS_IO, "cannot create a temporary file in '%s'", dir);
	unlink(path);
	return 0;
}

static int write_all(int fd, const void *p, size_t n, struct ds_err *err)
{
	const char *at = p;

	while (n) {
		ssize_t put = write(fd, at, n);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return err_errno(err, DS_IO, "cannot write to a temporary file (TMPDIR)");
		at += put;
		n -= (size_t)put;
	}
	return 0;
}

/* What cannot be read again at any place is copied to a file that can. */
static int spool_input(struct input *in, struct ds_err *err)
{
	enum { PIECE = 1 << 20 };
	char *piece = malloc(PIECE);
	int fd = -1, rc = piece ? temporary(&fd, err) : err_nomem(err, PIECE, "a capture");

	while (!rc) {
		ssize_t n = read(in->fd, piece, PIECE);

		if (n == 0)
			break;
		if (n > 0)
			rc = write_all(fd, piece, (size_t)n, err);
		else if (errno == EAGAIN)
			usleep(10000);
		else if (errno != EINTR)
			rc = err_errno(err, DS_IO, "cannot read '%s'", in->name);
	}
	free(piece);
	if (!rc && lseek(fd, 0, SEEK_SET) < 0)
		rc = err_errno(err, DS_IO, "cannot read a temporary file");
	if (rc) {
		if (fd >= 0)
			close(fd);
		return rc;
	}
	input_close(in);
	in->fd = fd;
	return 0;
}

static int read_at(const struct capture *c, int fd, void *dst, size_t n, uint64_t at, struct ds_err *err)
{
	char *p = dst;

	while (n) {
		ssize_t got = pread(fd, p, n, (off_t)at);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return err_errno(err, DS_IO, "cannot read '%s'", c->name);
		if (got == 0)
			return err_set(err, DS_DATA, "'%s' has become shorter while it was read", c->name);
		p += got;
		at += (uint64_t)got;
		n -= (size_t)got;
	}
	return 0;
}

/* ---- where payloads lie ---- */

struct where { uint64_t at; bool plain; };

static int place_payload(struct capture *c, const struct frame *f, struct where *w, struct ds_err *err)
{
	uint8_t flags[2];
	int rc = read_at(c, c->fd, flags, sizeof flags, f->offset + 9, err);

	if (rc)
		return rc;
	*w = (struct where){ f->offset + FRAME_HEAD_BYTES + f->meta_len + FRAME_BIN_BYTES, false };
	if (!(flags[1] & FRAME_ZSTD) || !f->data_len)
		return 0;
	*w = (struct where){ c->spooled, true };
	if (c->spool < 0)
		rc = temporary(&c->spool, err);
	if (!rc)
		rc = write_all(c->spool, f->data, f->data_len, err);
	c->spooled += f->data_len;
	return rc;
}

/* ---- the index ---- */

static int turn_of(struct capture *c, uint64_t stream, size_t *turn, struct ds_err *err)
{
	bool fresh;
	size_t *at = map_at(&c->turns, stream, &fresh);
	uint64_t *streams;

	if (!at)
		return err_nomem(err, c->stream_count, "streams");
	if (fresh) {
		streams = mem_more(c->streams, &c->stream_cap, c->stream_count, sizeof *streams);
		if (!streams)
			return no_room(c, err);
		c->streams = streams;
		streams[c->stream_count] = stream;
		*at = c->stream_count++;
	}
	*turn = *at;
	return 0;
}

static int add_name(struct capture *c, const struct cap_name *n, struct ds_err *err)
{
	struct cap_name *names;
	bool fresh;
	size_t *at = map_at(&c->name_map, n->stream, &fresh);

	if (!at)
		return err_nomem(err, c->name_count, "names");
	if (!fresh)
		return 0;
	names = mem_more(c->names, &c->name_cap, c->name_count, sizeof *names);
	if (!names)
		return no_room(c, err);
	c->names = names;
	*at = c->name_count;
	names[c->name_count++] = *n;
	return 0;
}

/* Of rows whose name has been checked. */
static int name_rows(struct capture *c, const struct point_rows *r, struct ds_err *err)
{
	struct cap_name n = { .stream = r->stream };

	if (!r->id || map_find(&c->name_map, r->stream))
		return 0;
	n.choice = r->stream - frame_stream_id(r->id, r->id_len);
	memcpy(n.id, r->id, r->id_len);
	return add_name(c, &n, err);
}

static int add_rows(struct capture *c, const struct cap_rows *r, struct ds_err *err)
{
	struct cap_rows *rows = mem_more(c->rows, &c->row_cap, c->row_count, sizeof *rows);

	if (!rows)
		return no_room(c, err);
	c->rows = rows;
	rows[c->row_count++] = *r;
	return 0;
}

static int add_point(struct capture *c, const struct frame *f, const struct where *w, struct ds_err *err)
{
	struct point_frame p;
	struct cap_rows r = { .order = c->order++, .plain = w->plain };
	int rc = point_frame_get(f, &p, err);

	if (!rc)
		rc = point_set_add(&c->keys, &p.point, &r.key, err);
	r.at = w->at + p.t.offset;
	r.cols = p.cols;
	r.type = p.t.type;
	for (size_t i = 0; !rc && i < p.segs; i++) {
		struct point_rows s = point_rows_at(f, i);

		r.stream = s.stream;
		r.first = s.first;
		r.count = s.count;
		rc = turn_of(c, r.stream, &r.turn, err);
		if (!rc)
			rc = name_rows(c, &s, err);
		if (!rc)
			rc = add_rows(c, &r, err);
		r.at += s.count * r.cols * dtype_size(r.type);
	}
	return rc;
}

static int add_kv(struct capture *c, const struct frame *f, const struct where *w, struct ds_err *err)
{
	struct kv_block k;
	struct frame_tensor t;
	struct point p = { .name = "cache", .layered = true };
	struct cap_rows r = { .stream = f->stream, .order = c->order++, .plain = w->plain };
	int rc = kv_block_get(f, &k, &t, err);

	if (!rc)
		rc = turn_of(c, f->stream, &r.turn, err);
	if (rc)
		return rc;
	r.first = k.first;
	r.count = k.count;
	r.cols = t.shape[2];
	r.type = t.type;
	for (uint64_t l = 0; !rc && r.cols && l < t.shape[0]; l++) {
		p.layer = l;
		r.at = w->at + t.offset + l * t.shape[1] * r.cols * dtype_size(t.type);
		rc = point_set_add(&c->keys, &p, &r.key, err);
		if (!rc)
			rc = add_rows(c, &r, err);
	}
	return rc;
}

/* A tensor of some other frame: rows where it has several axes or tokens, else one row. */
static int add_tensor(struct capture *c, const struct frame *f, const struct frame_tensor *t, uint64_t ordinal,
	const struct where *w, struct ds_err *err)
{
	bool tokens = t->ndim > 1 || (t->ndim == 1 && strcmp(t->dims[0], "token") == 0);
	struct cap_rows r = { .stream = f->stream, .order = c->order++, .plain = w->plain, .type = t->type,
		.count = tokens ? t->shape[0] : 1, .at = w->at + t->offset };
	struct point p = { .layered = false };
	int rc;

	if (!t->nbytes || ordinal >> 24 || r.count >> 32)
		return 0;
	r.cols = t->nbytes / dtype_size(t->type) / r.count;
	r.first = ordinal << 32;
	snprintf(p.name, sizeof p.name, "%s.%s", frame_type_name(f->type), t->name);
	rc = point_set_add(&c->keys, &p, &r.key, err);
	if (!rc)
		rc = turn_of(c, f->stream, &r.turn, err);
	return rc ? rc : add_rows(c, &r, err);
}

static int name_frame(struct capture *c, const struct frame *f, struct ds_err *err)
{
	struct cap_name n = { .stream = f->stream };

	if (!f->stream || meta_cstr(f->meta, "id", n.id, sizeof n.id) != META_OK || !n.id[0])
		return 0;
	return add_name(c, &n, err);
}

static int add_frame(struct capture *c, const struct frame *f, const struct where *w, struct ds_err *err)
{
	struct cap_frame e = { .type = f->type, .stream = f->stream, .number = f->number,
		.meta_at = f->offset + FRAME_HEAD_BYTES, .meta_len = f->meta_len };
	bool fresh;
	size_t *n = map_at(&c->ordinals, f->stream ^ f->type * 0x9e3779b97f4a7c15u, &fresh);
	struct cap_frame *frames = mem_more(c->frames, &c->frame_cap, c->frame_count, sizeof *frames);
	int rc;

	if (frames)
		c->frames = frames;
	if (!n || !frames)
		return no_room(c, err);
	e.ordinal = (*n)++;
	rc = turn_of(c, f->stream, &e.turn, err);
	frames[c->frame_count++] = e;
	for (size_t i = 0; !rc && i < frame_tensor_count(f); i++) {
		struct frame_tensor t;

		rc = frame_tensor_at(f, i, &t, err);
		if (!rc)
			rc = add_tensor(c, f, &t, e.ordinal, w, err);
	}
	return rc ? rc : name_frame(c, f, err);
}

static int add_token(struct capture *c, const struct frame *f, struct ds_err *err)
{
	static const char *const known[] = { "index", "id", "logprob", "t_ns", "choice", "_", NULL };
	struct cap_token t = { .stream = f->stream, .order = c->order++, .meta_at = f->offset + FRAME_HEAD_BYTES,
		.meta_len = f->meta_len };
	struct cap_token *tokens = mem_more(c->tokens, &c->token_cap, c->token_count, sizeof *tokens);
	uint64_t id;

	if (!tokens)
		return no_room(c, err);
	c->tokens = tokens;
	if (meta_uint(f->meta, "index", &t.index) != META_OK || meta_uint(f->meta, "id", &id) != META_OK ||
		id > UINT32_MAX || meta_uint(f->meta, "choice", &t.choice) == META_TYPE)
		return err_set(err, DS_DATA, "frame %llu (token): 'index', 'id' or 'choice' is not a whole number",
			(unsigned long long)f->number);
	t.id = (uint32_t)id;
	t.has_logprob = meta_real(f->meta, "logprob", &t.logprob) == META_OK;
	t.more = meta_others(f->meta, known) > 0;
	if (turn_of(c, f->stream, &t.turn, err))
		return err->code;
	tokens[c->token_count++] = t;
	return 0;
}

static int index_frame(struct frame *f, void *ctx, struct ds_err *err)
{
	struct capture *c = ctx;
	struct where w = { 0, false };
	int rc = frame_check_payload(f, err);

	if (!rc && f->type == FRAME_HELLO)
		return hello_get(f, &c->hello, err);
	if (rc || f->type == FRAME_END)
		return rc;
	if (f->flags & FRAME_MORE)
		return err_set(err, DS_DATA, "frame %llu: a payload cut into several frames is not supported",
			(unsigned long long)f->number);
	if (f->type == FRAME_TOKEN)
		return add_token(c, f, err);
	rc = place_payload(c, f, &w, err);
	if (rc)
		return rc;
	return point_frame_is(f) ? add_point(c, f, &w, err) : f->type == FRAME_KV ? add_kv(c, f, &w, err)
		: add_frame(c, f, &w, err);
}

int capture_open(struct capture *c, const char *path, uint64_t max_frame, bool force, struct ds_err *err)
{
	struct input in;
	int rc;

	memset(c, 0, sizeof *c);
	c->fd = c->spool = -1;
	rc = input_open(&in, path, force, err);
	if (rc)
		return rc;
	if (!in.seekable)
		rc = spool_input(&in, err);
	c->name = in.name;
	c->fd = in.fd;
	if (!rc)
		rc = input_frames(&in, max_frame, true, index_frame, c, NULL, err);
	if (rc)
		capture_close(c);
	return rc;
}

void capture_close(struct capture *c)
{
	if (c->fd > STDERR_FILENO)
		close(c->fd);
	if (c->spool >= 0)
		close(c->spool);
	point_set_free(&c->keys);
	free(c->rows);
	free(c->tokens);
	free(c->frames);
	free(c->names);
	free(c->streams);
	map_free(&c->name_map);
	map_free(&c->ordinals);
	map_free(&c->turns);
	memset(c, 0, sizeof *c);
	c->fd = c->spool = -1;
}

/* ---- reading ---- */

int capture_read(const struct capture *c, const struct cap_rows *r, uint64_t row, uint64_t n, void *dst,
	struct ds_err *err)
{
	size_t bytes = (size_t)r->cols * dtype_size(r->type);

	return read_at(c, r->plain ? c->spool : c->fd, dst, (size_t)n * bytes, r->at + row * bytes, err);
}

int capture_meta(const struct capture *c, uint64_t at, uint32_t len, struct meta_doc **d, struct ds_err *err)
{
	uint8_t *p = mem_array(len ? len : 1, 1);
	int rc = p ? read_at(c, c->fd, p, len, at, err) : err_nomem(err, len, "frame meta");

	if (!rc)
		rc = meta_parse(d, p, len, err);
	free(p);
	return rc;
}

const struct cap_name *capture_name(const struct capture *c, uint64_t stream)
{
	const size_t *at = map_find(&c->name_map, stream);

	return at ? &c->names[*at] : NULL;
}

void capture_turns(struct capture *c, const size_t *turn)
{
	for (size_t i = 0; i < c->row_count; i++)
		c->rows[i].turn = turn[c->rows[i].turn];
	for (size_t i = 0; i < c->token_count; i++)
		c->tokens[i].turn = turn[c->tokens[i].turn];
	for (size_t i = 0; i < c->frame_count; i++)
		c->frames[i].turn = turn[c->frames[i].turn];
}

/* ds-frame head, filter, cut and merge: frames out, forwarded as they came unless rows are cut out of them. */
#include "frame/slice.h"

#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "frame/hello.h"
#include "frame/input.h"
#include "frame/messages.h"

enum { HEAD_FRAMES = 10 };

int slice_open(struct slice_out *out, const struct tool_options *o, struct ds_err *err)
{
	int rc;

	memset(out, 0, sizeof *out);
	rc = outfile_open(&out->file, o->output, o->force, false, err);
	if (!rc)
		rc = frame_writer_new(&out->w, out->file.fd, out->file.path, err);
	if (!rc && !(out->meta = meta_new()))
		rc = err_nomem(err, 64, "frame meta");
	if (rc)
		slice_close(out, rc, err);
	return rc;
}

int slice_close(struct slice_out *out, int rc, struct ds_err *err)
{
	if (!rc)
		rc = frame_write_end(out->w, err);
	if (!rc)
		rc = outfile_commit(&out->file, err);
	frame_writer_free(out->w);
	meta_free(out->meta);
	outfile_discard(&out->file);
	return rc;
}

/* Runs `each` over a capture with the output open. */
static int run(const struct tool_options *o, const char *path, struct slice_out *out, input_fn each, void *ctx,
	struct ds_err *err)
{
	struct input in;
	int rc = input_open(&in, path, o->force, err);

	if (rc)
		return rc;
	rc = slice_open(out, o, err);
	if (!rc)
		rc = slice_close(out, input_frames(&in, o->max_frame, true, each, ctx, NULL, err), err);
	input_close(&in);
	return rc;
}

/* ---- head ---- */

struct head { struct slice_out out; uint64_t left; };

static int head_frame(struct frame *f, void *ctx, struct ds_err *err)
{
	struct head *h = ctx;
	int rc;

	if (f->type == FRAME_END)
		return 0;
	rc = frame_forward(h->out.w, f, err);
	if (rc || f->type == FRAME_HELLO)
		return rc ? rc : h->left ? 0 : INPUT_STOP;
	return --h->left ? 0 : INPUT_STOP;
}

int tool_head(const struct tool_options *o, const char *path, struct ds_err *err)
{
	struct head h = { .left = o->count < 0 ? HEAD_FRAMES : (uint64_t)o->count };

	return run(o, path, &h.out, head_frame, &h, err);
}

/* ---- filter, cut ---- */

struct slice { struct slice_out out; const struct selection *s; bool cut; struct point_rows *kept; size_t cap; };

static int keep(struct slice *c, size_t n, const struct point_rows *piece, struct ds_err *err)
{
	struct point_rows *p = mem_more(c->kept, &c->cap, n, sizeof *p);

	if (!p)
		return err_nomem(err, n * sizeof *p, "a tensor's rows");
	c->kept = p;
	p[n] = *piece;
	return 0;
}

/* The first range of positions at or after `at` within [at, end), as [*from, *to); false: none. */
static bool next_piece(const struct ranges *r, uint64_t at, uint64_t end, uint64_t *from, uint64_t *to)
{
	bool found = false;

	*from = at;
	*to = end;
	if (!r->n)
		return at < end;
	for (size_t i = 0; i < r->n; i++) {
		uint64_t first = r->v[i].first > at ? r->v[i].first : at;
		uint64_t past = r->v[i].last < end - 1 ? r->v[i].last + 1 : end;

		if (first < past && first < end && (!found || first < *from)) {
			found = true;
			*from = first;
			*to = past;
		}
	}
	return found;
}

/* Moves the rows that are meant to the front of the payload and lists them. */
static int keep_rows(struct slice *c, struct frame *f, const struct point_frame *p, size_t *count, struct ds_err *err)
{
	size_t row = (size_t)(p->t.nbytes / p->rows);
	uint8_t *from = f->data + p->t.offset, *to = from;
	int rc = 0;

	*count = 0;
	for (size_t i = 0; !rc && i < p->segs; i++) {
		struct point_rows r = point_rows_at(f, i), piece = { .stream = r.stream, .id = r.id,
			.id_len = r.id_len };
		uint64_t at = r.first, end = r.first + r.count, past;

		while (!rc && at < end && selection_has_stream(c->s, r.stream) &&
			next_piece(&c->s->positions, at, end, &piece.first, &past)) {
			piece.count = past - piece.first;
			rc = keep(c, (*count)++, &piece, err);
			memmove(to, from + (piece.first - r.first) * row, piece.count * row);
			to += piece.count * row;
			at = past;
		}
		from += r.count * row;
	}
	return rc;
}

static int cut_frame(struct slice *c, struct frame *f, const struct point_frame *p, struct ds_err *err)
{
	struct point_data d = { .point = &p->point, .has_step = p->has_step, .step = p->step, .type = p->t.type,
		.data = f->data + p->t.offset, .cols = (size_t)p->cols };
	int rc;

	if (!c->s->stream_count && !c->s->request_count && !c->s->positions.n)
		return frame_forward(c->out.w, f, err);
	rc = frame_check_payload(f, err); /* what is written gets a hash of its own */
	if (!rc)
		rc = keep_rows(c, f, p, &d.seg_count, err);
	d.segs = c->kept;
	return rc ? rc : point_write(c->out.w, c->out.meta, &d, &f->meta, err);
}

static int slice_frame(struct frame *f, void *ctx, struct ds_err *err)
{
	struct slice *c = ctx;
	struct point_frame p;
	bool tensor = point_frame_is(f);
	int rc;

	if (f->type == FRAME_END)
		return 0;
	if (f->type == FRAME_HELLO)
		return frame_forward(c->out.w, f, err);
	rc = tensor ? point_frame_get(f, &p, err) : 0;
	if (rc || !selection_has(c->s, f, tensor ? &p : NULL))
		return rc;
	return c->cut && tensor ? cut_frame(c, f, &p, err) : frame_forward(c->out.w, f, err);
}

int tool_select(const struct tool_options *o, const struct selection *s, bool cut, const char *path,
	struct ds_err *err)
{
	struct slice c = { .s = s, .cut = cut };
	int rc = run(o, path, &c.out, slice_frame, &c, err);

	free(c.kept);
	return rc;
}

/* ---- merge ---- */

struct merge {
	struct slice_out out;
	struct hello hello;   /* the first capture's */
	struct map seen;      /* what was said of a stream, and by which capture */
	const char *name;
	char **paths;
	int at;               /* the present capture */
};

static int merge_hello(struct merge *m, const struct frame *f, struct ds_err *err)
{
	struct hello h;
	int rc = hello_get(f, &h, err);

	if (rc)
		return rc;
	if (m->at)
		return hello_check(&m->hello, &h, m->name, err);
	m->hello = h;
	return frame_forward(m->out.w, f, err);
}

/* Two captures that each have a request, a first token, tokens or an end of one id speak of two requests. */
static int merge_seen(struct merge *m, const struct frame *f, struct ds_err *err)
{
	static const uint32_t once = 1u << FRAME_REQUEST | 1u << FRAME_KV | 1u << FRAME_PREFILLED |
		1u << FRAME_TOKEN | 1u << FRAME_DONE | 1u << FRAME_ERROR;
	char id[REQUEST_ID_MAX + 1] = "";
	size_t *who;
	bool fresh;

	if (!f->stream || !(once >> f->type & 1))
		return 0;
	who = map_at(&m->seen, f->stream ^ f->type * 0x9e3779b97f4a7c15u, &fresh);
	if (!who)
		return err_nomem(err, m->seen.n, "streams");
	if (fresh)
		*who = (size_t)m->at;
	if (*who == (size_t)m->at)
		return 0;
	meta_cstr(f->meta, "id", id, sizeof id);
	return err_set(err, DS_DATA,
		"frame %llu: request '%s' (stream %016llx) has %s frames in '%s', too; names must differ",
		(unsigned long long)f->number, id, (unsigned long long)f->stream, frame_type_name(f->type),
		m->paths[*who]);
}

static int merge_frame(struct frame *f, void *ctx, struct ds_err *err)
{
	struct merge *m = ctx;
	int rc;

	if (f->type == FRAME_END)
		return 0;
	if (f->type == FRAME_HELLO) {
		rc = merge_hello(m, f, err);
	} else {
		rc = merge_seen(m, f, err);
		if (!rc)
			rc = frame_forward(m->out.w, f, err);
	}
	return rc;
}

static int merge_one(struct merge *m, const struct tool_options *o, const char *path, struct ds_err *err)
{
	struct input in;
	int rc = input_open(&in, path, o->force, err);

	if (rc)
		return rc;
	m->name = in.name;
	rc = input_frames(&in, o->max_frame, true, merge_frame, m, NULL, err);
	input_close(&in);
	return rc;
}

int tool_merge(const struct tool_options *o, char **paths, int n, struct ds_err *err)
{
	struct merge m = { .paths = paths };
	int rc = slice_open(&m.out, o, err);

	if (rc)
		return rc;
	for (m.at = 0; !rc && m.at < n; m.at++)
		rc = merge_one(&m, o, paths[m.at], err);
	rc = slice_close(&m.out, rc, err);
	map_free(&m.seen);
	return rc;
}

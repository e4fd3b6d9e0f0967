/* ds-frame dump: one JSON line a frame. */
#include <math.h>
#include <stdio.h>

#include "base/json.h"
#include "base/log.h"
#include "base/xxh3.h"
#include "frame/input.h"
#include "frame/tools.h"

struct summary { double min, max, sum; uint64_t nan, n; };

/* A double does not hold every I64. */
static void put_whole(struct jw *w, enum dtype type, const uint8_t *p, uint64_t n)
{
	int64_t min = INT64_MAX, max = INT64_MIN;

	for (uint64_t i = 0; i < n; i++) {
		int64_t v = int_at(type, p, i);

		min = v < min ? v : min;
		max = v > max ? v : max;
	}
	jw_key(w, "min");
	if (n)
		jw_int(w, min);
	else
		jw_null(w);
	jw_key(w, "max");
	if (n)
		jw_int(w, max);
	else
		jw_null(w);
}

static struct summary summarise(enum dtype type, const uint8_t *p, uint64_t n)
{
	struct summary s = { .min = INFINITY, .max = -INFINITY, .n = n };

	for (uint64_t i = 0; i < n; i++) {
		double v = value_at(type, p, i);

		if (isnan(v)) {
			s.nan++;
			continue;
		}
		s.min = v < s.min ? v : s.min;
		s.max = v > s.max ? v : s.max;
		s.sum += v;
	}
	return s;
}

static void put_tensor(struct jw *w, const struct frame *f, const struct frame_tensor *t, int64_t values)
{
	const uint8_t *p = t->nbytes ? f->data + t->offset : (const uint8_t *)"";
	uint64_t n = t->nbytes / dtype_size(t->type);
	bool real = dtype_is_real(t->type);
	struct summary s = real ? summarise(t->type, p, n) : (struct summary){ .n = n };

	jw_obj(w);
	jw_key(w, "name");
	jw_str(w, t->name);
	jw_key(w, "dtype");
	jw_str(w, dtype_name(t->type));
	jw_key(w, "dims");
	jw_arr(w);
	for (size_t i = 0; i < t->ndim; i++)
		jw_str(w, t->dims[i]);
	jw_arr_end(w);
	jw_key(w, "shape");
	jw_arr(w);
	for (size_t i = 0; i < t->ndim; i++)
		jw_uint(w, t->shape[i]);
	jw_arr_end(w);
	if (!real) {
		put_whole(w, t->type, p, n);
	} else {
		jw_put_real(w, "min", s.n > s.nan ? s.min : (double)NAN);
		jw_put_real(w, "max", s.n > s.nan ? s.max : (double)NAN);
		jw_put_real(w, "mean", s.n > s.nan ? s.sum / (double)(s.n - s.nan) : (double)NAN);
		jw_key(w, "nan");
		jw_uint(w, s.nan);
	}
	jw_put_hex(w, "xxh", xxh3(p, t->nbytes));
	jw_key(w, "first");
	jw_arr(w);
	for (uint64_t i = 0; i < n && i < (uint64_t)values; i++) {
		if (real)
			jw_real(w, value_at(t->type, p, i));
		else
			jw_int(w, int_at(t->type, p, i));
	}
	jw_arr_end(w);
	jw_obj_end(w);
}

static void put_flags(struct jw *w, unsigned flags)
{
	jw_key(w, "flags");
	jw_arr(w);
	if (flags & FRAME_MORE)
		jw_str(w, "more");
	if (flags & FRAME_DROPPABLE)
		jw_str(w, "droppable");
	jw_arr_end(w);
}

/* What is wrong with a payload is told, and the dump goes on: the first such error is the program's exit code. */
static void put_tensors(struct jw *w, const struct frame *f, int64_t values, int *bad)
{
	struct frame_tensor t;
	struct ds_err err;

	if (frame_tensor_count(f)) {
		jw_key(w, "tensors");
		jw_arr(w);
		for (size_t i = 0; i < frame_tensor_count(f); i++)
			if (frame_tensor_at(f, i, &t, &err))
				*bad = log_err(&err);
			else
				put_tensor(w, f, &t, values);
		jw_arr_end(w);
	}
	if (frame_check_payload(f, &err))
		*bad = log_err(&err);
}

struct dump { struct buf line; int bad; bool live; int64_t values; };

static int dump_frame(struct frame *f, void *ctx, struct ds_err *err)
{
	struct dump *d = ctx;
	struct jw w;

	d->line.len = 0;
	jw_init(&w, &d->line);
	jw_obj(&w);
	jw_put_uint(&w, "number", f->number);
	jw_put_uint(&w, "offset", f->offset);
	jw_key(&w, "type");
	jw_str(&w, frame_type_name(f->type));
	jw_put_hex(&w, "stream", f->stream);
	jw_put_uint(&w, "seq", f->seq);
	put_flags(&w, f->flags);
	jw_key(&w, "meta");
	meta_json(&w, f->meta);
	jw_put_uint(&w, "bytes", f->data_len);
	put_tensors(&w, f, d->values, &d->bad);
	jw_obj_end(&w);
	buf_add(&d->line, "\n", 1);
	if (d->line.nomem)
		return err_nomem(err, d->line.len, "a line of output");
	if (fwrite(d->line.p, 1, d->line.len, stdout) != d->line.len || (d->live && fflush(stdout)))
		return err_errno(err, DS_IO, "cannot write to '<stdout>'");
	return 0;
}

int tool_dump(const struct tool_options *o, const char *path, struct ds_err *err)
{
	struct dump d = { .values = o->count < 0 ? 4 : o->count };
	struct input in;
	int rc = input_open(&in, path, o->force, err);

	if (rc)
		return rc;
	d.live = !in.seekable;
	rc = input_frames(&in, o->max_frame, false, dump_frame, &d, NULL, err);
	input_close(&in);
	buf_free(&d.line);
	if (!rc && d.bad) {
		err->text[0] = 0;
		return d.bad;
	}
	return rc;
}

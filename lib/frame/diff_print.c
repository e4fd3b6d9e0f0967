/* ds-frame diff: what it found, as a table and as JSON. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "frame/diff.h"

enum { NAME_TEXT = 24 };

const char *diff_name(const struct diff *d, uint64_t stream, char text[DIFF_NAME_MAX])
{
	const struct cap_name *name = capture_name(&d->c[SIDE_A], stream);

	if (!name)
		name = capture_name(&d->c[SIDE_B], stream);
	if (!name)
		snprintf(text, DIFF_NAME_MAX, "%016llx", (unsigned long long)stream);
	else if (name->choice)
		snprintf(text, DIFF_NAME_MAX, "%s choice %llu", name->id, (unsigned long long)name->choice);
	else
		return name->id;
	return text;
}

static const char *side_name(const struct diff *d, int side)
{
	return d->c[side].name;
}

/* A line; names in it come from outside. */
static __attribute__((format(printf, 2, 3))) void line(struct buf *out, const char *fmt, ...)
{
	char *text;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (n < 0) {
		out->nomem = true;
		return;
	}
	err_one_line(text);
	buf_str(out, text);
	buf_str(out, "\n");
	free(text);
}

/* ---- tensors ---- */

static void number(char text[16], double v, bool known)
{
	if (!known)
		snprintf(text, 16, "-");
	else
		snprintf(text, 16, "%.3g", v);
}

static void print_point(const struct diff *d, const struct diff_point *p, struct buf *out)
{
	char name[POINT_NAME_MAX + 32], abs[16], rel[16], cos[16], worst[DIFF_NAME_MAX + 100] = "";
	char only[2][48] = { "", "" }, id[DIFF_NAME_MAX];
	bool known = !p->whole && p->rows > p->other_shape;

	point_format(&p->point, name);
	number(abs, p->abs, known);
	number(rel, p->rel, known);
	if (known && isfinite(p->cos))
		snprintf(cos, sizeof cos, "%.9g", p->cos);
	else
		number(cos, p->cos, false);
	if (p->differing > p->other_shape)
		snprintf(worst, sizeof worst, "  %s %llu [%llu] %.6g %.6g", diff_name(d, p->stream, id),
			(unsigned long long)p->position, (unsigned long long)p->worst.col, p->worst.a, p->worst.b);
	if (p->other_shape)
		snprintf(worst, sizeof worst, "  %llu row%s of another width", (unsigned long long)p->other_shape,
			plural(p->other_shape));
	for (int s = 0; s < 2; s++)
		if (p->only[s])
			snprintf(only[s], sizeof only[s], "  %llu row%s only in ", (unsigned long long)p->only[s],
				plural(p->only[s]));
	line(out, "%c %-*s %8llu %8llu %10s %10s %12s%s%s%s%s%s", diff_point_bad(d, p) ? '*' : ' ', NAME_TEXT, name,
		(unsigned long long)p->rows, (unsigned long long)p->differing, abs, rel, cos, worst, only[SIDE_A],
		p->only[SIDE_A] ? side_name(d, SIDE_A) : "", only[SIDE_B],
		p->only[SIDE_B] ? side_name(d, SIDE_B) : "");
}

static const struct diff_point *first_bad(const struct diff *d)
{
	for (size_t i = 0; i < d->point_count; i++)
		if (d->points[i].over)
			return &d->points[i];
	return NULL;
}

/* Tensors without a row to compare are counted, and the first of them named.  lacking: 1 only in a, 2 only in b, 3 in
 * both. */
static void print_lacking(const struct diff *d, unsigned lacking, struct buf *out)
{
	enum { NAMED = 3 };
	char names[NAMED * (POINT_NAME_MAX + 34)] = "", name[POINT_NAME_MAX + 32];
	size_t n = 0, at = 0;

	for (size_t i = 0; i < d->point_count; i++) {
		const struct diff_point *p = &d->points[i];

		if (p->rows || (unsigned)((p->only[0] > 0) + 2 * (p->only[1] > 0)) != lacking)
			continue;
		point_format(&p->point, name);
		if (n++ < NAMED)
			at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", at ? ", " : "", name);
	}
	if (n && lacking == 3)
		line(out, "%c %zu tensor%s in both without a row in common: %s%s", d->o.common ? ' ' : '*', n,
			plural(n), names, n > NAMED ? ", ..." : "");
	else if (n)
		line(out, "%c %zu tensor%s only in %s: %s%s", d->o.common ? ' ' : '*', n, plural(n),
			side_name(d, lacking == 1 ? SIDE_A : SIDE_B), names, n > NAMED ? ", ..." : "");
}

static void print_points(const struct diff *d, struct buf *out)
{
	const struct diff_point *first = first_bad(d);
	char name[POINT_NAME_MAX + 32];
	bool header = false;

	for (size_t i = 0; i < d->point_count; i++) {
		if (!d->points[i].rows)
			continue;
		if (!header)
			line(out, "  %-*s %8s %8s %10s %10s %12s  %s", NAME_TEXT, "tensor", "rows", "differ", "max abs",
				"max rel", "least cos", "worst row: request, position, [column], values");
		header = true;
		print_point(d, &d->points[i], out);
	}
	for (unsigned lacking = 1; lacking <= 3; lacking++)
		print_lacking(d, lacking, out);
	if (!first)
		return;
	point_format(&first->point, name);
	line(out, "first %s: %s, %llu of %llu row%s", d->o.tol >= 0 || d->o.atol >= 0 ? "over tolerance" : "difference",
		name, (unsigned long long)first->over, (unsigned long long)first->rows, plural(first->rows));
}

/* ---- tokens and frames ---- */

static void side_token(char text[32], const struct diff_request *r, int side)
{
	if (r->has[side])
		snprintf(text, 32, "%u", r->id[side]);
	else
		snprintf(text, 32, "none");
}

static void print_request(const struct diff *d, const struct diff_request *r, struct buf *out)
{
	char id[DIFF_NAME_MAX], label[DIFF_NAME_MAX + 40], token[2][32];

	snprintf(label, sizeof label, "%s", diff_name(d, r->stream, id));
	if (r->choice)
		snprintf(label + strlen(label), sizeof label - strlen(label), " choice %llu",
			(unsigned long long)r->choice);
	if (!r->tokens[0] || !r->tokens[1]) {
		line(out, "%c %s: %llu token%s only in %s", d->o.common ? ' ' : '*', label,
			(unsigned long long)(r->tokens[0] + r->tokens[1]), plural(r->tokens[0] + r->tokens[1]),
			side_name(d, r->tokens[0] ? SIDE_A : SIDE_B));
		return;
	}
	for (int s = 0; s < 2; s++)
		side_token(token[s], r, s);
	if (r->differs)
		line(out, "* %s: token %llu is %s in %s, %s in %s", label, (unsigned long long)r->index, token[0],
			side_name(d, SIDE_A), token[1], side_name(d, SIDE_B));
	if (r->over_logprobs)
		line(out, "* %s: %llu logprob%s, by %.3g at most", label, (unsigned long long)r->over_logprobs,
			r->over_logprobs == 1 ? " differs" : "s differ", r->logprob);
	for (int s = 0; s < 2; s++)
		if (r->lone_logprobs[s])
			line(out, "%c %s: %llu logprob%s only in %s", d->o.common ? ' ' : '*', label,
				(unsigned long long)r->lone_logprobs[s], plural(r->lone_logprobs[s]), side_name(d, s));
	if (r->other)
		line(out, "* %s: %llu token%s in other keys, first '%s': %s, %s", label,
			(unsigned long long)r->other, r->other == 1 ? " differs" : "s differ", r->first_other.path,
			r->first_other.a, r->first_other.b);
}

static void print_requests(const struct diff *d, struct buf *out)
{
	uint64_t tokens = 0, logprobs = 0;
	size_t answers = 0;
	double apart_by = 0;

	for (size_t i = 0; i < d->request_count; i++) {
		const struct diff_request *r = &d->requests[i];

		print_request(d, r, out);
		tokens += r->same;
		logprobs += r->logprobs;
		answers += diff_request_met(r);
		apart_by = fmax(apart_by, r->logprob);
	}
	if (answers)
		line(out, "  %zu answer%s, %llu token%s the same before any difference, %llu logprob%s within %.3g",
			answers, plural(answers), (unsigned long long)tokens, plural(tokens),
			(unsigned long long)logprobs, plural(logprobs), apart_by);
}

static void print_frame(const struct diff *d, const struct diff_frame *f, struct buf *out)
{
	char id[DIFF_NAME_MAX], at[40] = "";
	char mark = diff_frame_bad(d, f) ? '*' : ' ';

	if (f->ordinal)
		snprintf(at, sizeof at, " number %llu", (unsigned long long)f->ordinal + 1);
	if (f->has[0] && f->has[1])
		line(out, "%c %s of %s%s: '%s' is %s in %s, %s in %s", mark, frame_type_name(f->type),
			diff_name(d, f->stream, id), at, f->d.path, *f->d.a ? f->d.a : "absent", side_name(d, SIDE_A),
			*f->d.b ? f->d.b : "absent", side_name(d, SIDE_B));
	else
		line(out, "%c %s of %s%s: only in %s", mark, frame_type_name(f->type), diff_name(d, f->stream, id), at,
			side_name(d, f->has[0] ? SIDE_A : SIDE_B));
}

static void print_verdict(const struct diff *d, struct buf *out)
{
	char why[1024];

	if (diff_compared(d)) {
		line(out, "%s", diff_same(d) ? "the same" : "different");
	} else if (diff_same(d)) {
		line(out, "the same: both are empty");
	} else {
		diff_nothing(d, why, sizeof why);
		line(out, "nothing could be compared: %s", why);
	}
}

static void print_text(const struct diff *d, struct buf *out)
{
	const char *a = d->c[0].hello.model, *b = d->c[1].hello.model;

	if (*a && *b && strcmp(a, b) != 0)
		line(out, "  models: %s in %s, %s in %s", a, side_name(d, SIDE_A), b, side_name(d, SIDE_B));
	print_points(d, out);
	print_requests(d, out);
	for (size_t i = 0; i < d->frame_count; i++)
		print_frame(d, &d->frames[i], out);
	if (d->frames_compared)
		line(out, "  %llu other frame%s compared", (unsigned long long)d->frames_compared,
			plural(d->frames_compared));
	print_verdict(d, out);
}

/* ---- JSON ---- */

static void put_pair(struct jw *w, const char *key, const uint64_t v[2])
{
	jw_key(w, key);
	jw_arr(w);
	jw_uint(w, v[0]);
	jw_uint(w, v[1]);
	jw_arr_end(w);
}

static void put_point(struct jw *w, const struct diff *d, const struct diff_point *p)
{
	char name[POINT_NAME_MAX + 32], id[DIFF_NAME_MAX];
	bool known = !p->whole && p->rows > p->other_shape;

	point_format(&p->point, name);
	jw_obj(w);
	jw_put_str(w, "tensor", name);
	jw_put_uint(w, "rows", p->rows);
	put_pair(w, "only", p->only);
	jw_put_uint(w, "differ", p->differing);
	jw_put_uint(w, "over", p->over);
	jw_put_uint(w, "other_width", p->other_shape);
	jw_put_real(w, "max_abs", known ? p->abs : (double)NAN);
	jw_put_real(w, "max_rel", known ? p->rel : (double)NAN);
	jw_put_real(w, "least_cos", known ? p->cos : (double)NAN);
	if (p->differing > p->other_shape) {
		jw_key(w, "worst");
		jw_obj(w);
		jw_put_str(w, "request", diff_name(d, p->stream, id));
		jw_put_uint(w, "position", p->position);
		jw_put_uint(w, "column", p->worst.col);
		jw_put_real(w, "a", p->worst.a);
		jw_put_real(w, "b", p->worst.b);
		jw_obj_end(w);
	}
	jw_obj_end(w);
}

static void put_request(struct jw *w, const struct diff *d, const struct diff_request *r)
{
	char id[DIFF_NAME_MAX];

	jw_obj(w);
	jw_put_str(w, "request", diff_name(d, r->stream, id));
	jw_put_uint(w, "choice", r->choice);
	put_pair(w, "tokens", r->tokens);
	jw_key(w, "differs_at");
	if (r->differs) {
		jw_uint(w, r->index);
		jw_key(w, "ids");
		jw_arr(w);
		for (int s = 0; s < 2; s++)
			if (r->has[s])
				jw_uint(w, r->id[s]);
			else
				jw_null(w);
		jw_arr_end(w);
	} else {
		jw_null(w);
	}
	jw_put_uint(w, "logprobs", r->logprobs);
	jw_put_uint(w, "logprobs_over", r->over_logprobs);
	put_pair(w, "logprobs_only", r->lone_logprobs);
	jw_put_real(w, "max_logprob", r->logprob);
	jw_put_uint(w, "other_keys", r->other);
	jw_obj_end(w);
}

static void put_frame(struct jw *w, const struct diff *d, const struct diff_frame *f)
{
	char id[DIFF_NAME_MAX];

	jw_obj(w);
	jw_put_str(w, "type", frame_type_name(f->type));
	jw_put_str(w, "request", diff_name(d, f->stream, id));
	jw_put_uint(w, "number", f->ordinal);
	jw_key(w, "in");
	jw_arr(w);
	jw_bool(w, f->has[0]);
	jw_bool(w, f->has[1]);
	jw_arr_end(w);
	jw_put_str(w, "key", f->d.path);
	jw_put_str(w, "a", f->d.a);
	jw_put_str(w, "b", f->d.b);
	jw_obj_end(w);
}

static void print_json(const struct diff *d, struct buf *out)
{
	const struct diff_point *first = first_bad(d);
	char name[POINT_NAME_MAX + 32], why[1024];
	struct jw w;

	jw_init(&w, out);
	jw_obj(&w);
	jw_key(&w, "same");
	jw_bool(&w, diff_same(d));
	jw_key(&w, "compared");
	jw_bool(&w, diff_compared(d));
	if (!diff_compared(d) && !diff_same(d)) {
		diff_nothing(d, why, sizeof why);
		jw_put_str(&w, "why", why);
	}
	jw_key(&w, "models");
	jw_arr(&w);
	jw_str(&w, d->c[0].hello.model);
	jw_str(&w, d->c[1].hello.model);
	jw_arr_end(&w);
	jw_key(&w, "first_over");
	if (first) {
		point_format(&first->point, name);
		jw_str(&w, name);
	} else {
		jw_null(&w);
	}
	jw_key(&w, "tensors");
	jw_arr(&w);
	for (size_t i = 0; i < d->point_count; i++)
		put_point(&w, d, &d->points[i]);
	jw_arr_end(&w);
	jw_key(&w, "answers");
	jw_arr(&w);
	for (size_t i = 0; i < d->request_count; i++)
		put_request(&w, d, &d->requests[i]);
	jw_arr_end(&w);
	jw_put_uint(&w, "frames_compared", d->frames_compared);
	jw_key(&w, "frames");
	jw_arr(&w);
	for (size_t i = 0; i < d->frame_count; i++)
		put_frame(&w, d, &d->frames[i]);
	jw_arr_end(&w);
	jw_obj_end(&w);
	buf_str(out, "\n");
}

int diff_print(const struct diff *d, bool json, struct ds_err *err)
{
	struct buf out = { 0 };
	int rc = 0;

	(json ? print_json : print_text)(d, &out);
	if (out.nomem)
		rc = err_nomem(err, out.len, "a table");
	else if (fwrite(out.p, 1, out.len, stdout) != out.len)
		rc = err_errno(err, DS_IO, "cannot write to '<stdout>'");
	buf_free(&out);
	return rc;
}

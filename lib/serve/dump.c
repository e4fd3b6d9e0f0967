#include "serve/dump.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/outfile.h"
#include "frame/point.h"
#include "net/addr.h"

#define DUMP_CONNECT_NS ((int64_t)15000000000) /* programs start in any order */

struct dump {
	struct outfile file;         /* fd -1 where it is a socket */
	int socket;                  /* or -1 */
	int64_t patience_ns;
	char name[300];
	struct frame_writer *w;
	struct meta_builder *meta;
	struct point_rows *segs;     /* [seg_cap] */
	size_t seg_cap, layers;      /* the MTP layer among them, if it runs */
	bool kv_alone;               /* of which only what its KV comes from is computed */
	bool *wanted;                /* [layers, POINT_KINDS]; points of no layer in row 0 */
	struct ds_err error;         /* code 0: fine */
};

/* ---- which points ---- */

static size_t kind_count(void)
{
	size_t n = 0;

	while (point_kinds[n].name)
		n++;
	return n;
}

static bool has_moe(const struct model *m, size_t layer)
{
	size_t main = m->config.layers;

	return layer < main ? m->layers[layer].moe : m->mtp[layer - main].layer.moe;
}

/* What a layer of the model that runs shows. */
static bool has_point(const struct dump *d, const struct model *m, size_t layer, size_t kind)
{
	const char *name = point_kinds[kind].name;

	if (layer >= m->config.layers && d->kv_alone && strcmp(name, "q") != 0 && strcmp(name, "kv") != 0)
		return false;
	return !point_kinds[kind].moe || has_moe(m, layer);
}

/* Calls fn for every point of what runs of the model. */
static void each_point(const struct dump *d, const struct model *m,
	void (*fn)(void *ctx, const struct point *p, size_t kind), void *ctx)
{
	for (size_t k = 0; point_kinds[k].name; k++)
		for (size_t l = 0; l < (point_kinds[k].layered ? d->layers : 1); l++) {
			struct point p = { .layered = point_kinds[k].layered, .layer = l };

			snprintf(p.name, sizeof p.name, "%s", point_kinds[k].name);
			if (!point_kinds[k].layered || has_point(d, m, l, k))
				fn(ctx, &p, k);
		}
}

struct choice { struct dump *d; const char *patterns; size_t kinds, matched; };

static void choose(void *ctx, const struct point *p, size_t kind)
{
	struct choice *c = ctx;
	bool *wanted = &c->d->wanted[p->layer * c->kinds + kind];

	if (point_matches(c->patterns, p)) {
		*wanted = true;
		c->matched++;
	}
}

static void list_range(struct buf *b, const struct dump *d, const struct model *m, bool moe)
{
	size_t layers = d->kv_alone ? m->config.layers : d->layers, first = 0, last = layers;

	while (moe && first < layers && !has_moe(m, first))
		first++;
	if (first == layers)
		return;
	buf_printf(b, "; layer.N.P, N from %zu to %zu, P one of", first, last - 1);
	for (size_t k = 0; point_kinds[k].name; k++)
		if (point_kinds[k].layered && point_kinds[k].moe == moe)
			buf_printf(b, " %s", point_kinds[k].name);
	if (moe)
		buf_str(b, " (router: all three)");
	else if (d->kv_alone)
		buf_printf(b, "; layer.%zu.q, layer.%zu.kv", layers, layers);
}

static int no_match(const struct dump *d, const struct model *m, const char *pattern, size_t n, struct ds_err *err)
{
	struct buf b = { 0 };
	int rc;

	for (size_t k = 0; point_kinds[k].name; k++)
		if (!point_kinds[k].layered)
			buf_printf(&b, " %s", point_kinds[k].name);
	list_range(&b, d, m, false);
	list_range(&b, d, m, true);
	rc = err_set(err, DS_USAGE, "--dump: '%.*s' matches no point; the points are%s", (int)(n < 100 ? n : 100),
		pattern, b.p ? b.p : "");
	buf_free(&b);
	return rc;
}

static int choose_points(struct dump *d, const char *patterns, const struct model *m, struct ds_err *err)
{
	struct choice c = { .d = d, .kinds = kind_count() };
	const char *text;
	size_t n;

	d->wanted = mem_calloc(d->layers * c.kinds, sizeof *d->wanted);
	if (!d->wanted)
		return err_nomem(err, d->layers * c.kinds, "points");
	for (size_t i = 0; pattern_at(patterns, i, &text, &n); i++) {
		char *one = strndup(text, n);

		if (!one)
			return err_nomem(err, n, "a pattern");
		c.patterns = one;
		c.matched = 0;
		each_point(d, m, choose, &c);
		free(one);
		if (!c.matched)
			return no_match(d, m, text, n, err);
	}
	return 0;
}

static bool wants(const struct dump *d, const struct tap_tensor *t)
{
	size_t kind = 0, kinds = kind_count();

	while (kind < kinds && strcmp(point_kinds[kind].name, t->point) != 0)
		kind++;
	return kind < kinds && t->layer < d->layers && d->wanted[t->layer * kinds + kind];
}

/* ---- where to ---- */

static bool is_address(const char *to)
{
	return strncmp(to, "unix:", 5) == 0 || strncmp(to, "tcp:", 4) == 0 || strncmp(to, "fd:", 3) == 0;
}

static void tell_waiting(const char *to)
{
	log_msg(LOG_WARN, "waiting for '%s' (--dump-to)", to);
}

static void tell_socket(const struct addr *a)
{
	tell_waiting(a->text);
}

static int open_socket(struct dump *d, const char *to, struct ds_err *err)
{
	struct addr a;
	int rc = addr_parse(to, &a, err);

	if (!rc)
		rc = addr_connect_told(&a, DUMP_CONNECT_NS, tell_socket, &d->socket, err);
	return rc ? err_prefix(err, "--dump-to") : 0;
}

/* A named pipe is opened when somebody reads it, and that takes as long as it takes. */
static int open_file(struct dump *d, const struct dump_options *o, struct ds_err *err)
{
	enum { TRIES = 100 };
	struct stat sb;
	bool pipe = stat(o->to, &sb) == 0 && S_ISFIFO(sb.st_mode);
	int held = -1, rc;

	for (int i = 0; pipe && held < 0 && i <= TRIES; i++) {
		held = open(o->to, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
		if (held < 0 && errno != ENXIO)
			break; /* outfile_open says why */
		if (held < 0 && i == TRIES)
			tell_waiting(o->to);
		else if (held < 0)
			nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
	rc = outfile_open(&d->file, o->to, o->force, false, err);
	if (held >= 0) /* the reader was not to see an end in between */
		close(held);
	return rc;
}

static int fd_of(const struct dump *d)
{
	return d->socket >= 0 ? d->socket : d->file.fd;
}

static int open_output(struct dump *d, const struct dump_options *o, struct ds_err *err)
{
	int rc;

	snprintf(d->name, sizeof d->name, "%s", strcmp(o->to, "-") == 0 ? "<stdout>" : o->to);
	if (is_address(o->to)) {
		rc = open_socket(d, o->to, err);
	} else if (strcmp(o->to, "-") == 0 && o->stdout_taken) {
		rc = err_set(err, DS_USAGE, "--dump-to '-': standard output is for the answers; give them -o FILE");
	} else {
		rc = open_file(d, o, err);
	}
	if (rc)
		return rc;
	if (fd_of(d) != STDOUT_FILENO) /* that one is not ours alone */
		fd_nonblock(fd_of(d), true);
	return frame_writer_new(&d->w, fd_of(d), d->name, err);
}

static int say_hello(struct dump *d, const struct hello *hello, struct ds_err *err)
{
	struct hello h = *hello;

	snprintf(h.role, sizeof h.role, "dump");
	h.kv.type = DT_NONE;
	hello_put(d->meta, &h);
	return frame_write(d->w, FRAME_HELLO, 0, 0, d->meta, NULL, 0, false, err);
}

static void dump_free(struct dump *d)
{
	frame_writer_free(d->w);
	if (d->socket >= 0)
		close(d->socket);
	outfile_discard(&d->file);
	meta_free(d->meta);
	free(d->wanted);
	free(d->segs);
	free(d);
}

int dump_open(struct dump **out, const struct dump_options *o, const struct model *m, const struct hello *hello,
	struct ds_err *err)
{
	struct dump *d = mem_calloc(1, sizeof *d);
	int rc;

	if (!d || !(d->meta = meta_new())) {
		free(d);
		return err_nomem(err, sizeof *d, "a dump");
	}
	d->socket = d->file.fd = -1;
	d->patience_ns = o->patience_ns;
	d->layers = m->config.layers + (o->mtp != DUMP_MTP_NONE);
	d->kv_alone = o->mtp == DUMP_MTP_KV;
	rc = choose_points(d, o->patterns, m, err);
	if (!rc)
		rc = open_output(d, o, err);
	if (!rc)
		rc = say_hello(d, hello, err);
	if (rc) {
		dump_free(d);
		return rc;
	}
	*out = d;
	return 0;
}

/* ---- what is shown ---- */

/* A dump's reader that goes is not what a reader of the answers would be: it is told. */
static void note(struct dump *d, int rc)
{
	if (rc == DS_SIGPIPE)
		err_set(&d->error, DS_IO, "cannot write to '%s': the reader of the dump has gone", d->name);
}

/* A slow reader holds the engine up: nothing is lost, nothing piles up.  One that takes nothing does not do so for
 * ever, or a service could not even be told to end. */
static void hand_over(struct dump *d)
{
	struct pollfd p = { .fd = fd_of(d), .events = POLLOUT };
	int64_t ms = d->patience_ns / 1000000;

	while (!d->error.code && frame_writer_queued(d->w)) {
		int n = poll(&p, 1, ms < 3600000 ? (int)ms : 3600000);

		if (n == 0)
			err_set(&d->error, DS_IO, "cannot write to '%s': the reader of the dump took nothing for %g s",
				d->name, (double)d->patience_ns / 1e9);
		else if (n > 0 || errno != EINTR)
			note(d, frame_writer_flush(d->w, &d->error));
	}
}

/* The rows of the segments that have any; returns how many those are. */
static size_t copy_segs(struct dump *d, const struct tap_tensor *t)
{
	size_t n = 0;

	if (t->seg_count > d->seg_cap) {
		struct point_rows *p = mem_realloc(d->segs, t->seg_count, sizeof *p);

		if (!p) {
			err_nomem(&d->error, t->seg_count * sizeof *p, "a dump's rows");
			return 0;
		}
		d->segs = p;
		d->seg_cap = t->seg_count;
	}
	for (size_t i = 0; i < t->seg_count; i++)
		if (t->segs[i].rows)
			d->segs[n++] = (struct point_rows){ .stream = t->segs[i].stream, .first = t->segs[i].first,
				.count = t->segs[i].rows, .id = t->segs[i].name,
				.id_len = t->segs[i].name ? strlen(t->segs[i].name) : 0 };
	return n;
}

void dump_tap(void *ctx, const struct tap_tensor *t)
{
	struct dump *d = ctx;
	struct point p = { .layer = t->layer };
	struct point_data data = { .point = &p, .has_step = true, .step = t->step, .type = t->type, .data = t->data,
		.cols = t->cols };
	size_t kind = 0;

	if (d->error.code || !wants(d, t))
		return;
	data.seg_count = copy_segs(d, t);
	while (strcmp(point_kinds[kind].name, t->point) != 0)
		kind++;
	p.layered = point_kinds[kind].layered;
	snprintf(p.name, sizeof p.name, "%s", t->point);
	data.segs = d->segs;
	note(d, point_write(d->w, d->meta, &data, NULL, &d->error));
	hand_over(d);
}

int dump_error(const struct dump *d, struct ds_err *err)
{
	if (d->error.code)
		*err = d->error;
	return d->error.code;
}

int dump_close(struct dump *d, struct ds_err *err)
{
	int rc;

	if (!d->error.code)
		note(d, frame_write_end(d->w, &d->error));
	hand_over(d);
	rc = dump_error(d, err);
	if (!rc)
		rc = outfile_commit(&d->file, err);
	dump_free(d);
	return rc;
}

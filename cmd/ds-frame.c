/* ds-frame: looks at streams of frames.  dump: one JSON line a frame; check: is a capture whole and sound? */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/json.h"
#include "base/log.h"
#include "base/opt.h"
#include "frame/hello.h"

static uint64_t max_frame;
static int64_t first_values;
static bool force;

static const struct opt options[] = {
	{ .name = "values", .letter = 'n', .arg = "N", .help = "dump: how many values of a tensor are shown",
	  .def = "4", .type = OPT_INT, .dst = &first_values, .min = 0, .max = 1 << 20 },
	{ .name = "max-frame", .arg = "SIZE", .help = "largest payload accepted", .def = "256M",
	  .type = OPT_SIZE, .dst = &max_frame, .env = true },
	{ .name = "force", .letter = 'f', .help = "read from a terminal", .type = OPT_FLAG, .dst = &force },
	{ 0 },
};

static const struct opt_program program = {
	.name = "ds-frame",
	.usage = "dump [FILE] | check [FILE...]",
	.purpose = "Shows the frames of a stream as JSON lines, or checks that a stream is whole and sound.",
	.example = "ds-prefill -m DIR < requests | tee kv.frames | ds-decode -m DIR > tokens; ds-frame dump kv.frames",
	.opts = options,
};

/* ---- input ---- */

static int open_input(const char *path, int *fd, const char **name, struct ds_err *err)
{
	struct stat st;

	*name = path;
	if (strcmp(path, "-") == 0) {
		*name = "<stdin>";
		*fd = STDIN_FILENO;
		if (fstat(*fd, &st))
			return err_errno(err, DS_NOINPUT, "cannot read '<stdin>'");
		if (isatty(*fd) && !force)
			return err_set(err, DS_USAGE, "frames do not come from a terminal: use a pipe or name a file");
		return 0;
	}
	*fd = open(path, O_RDONLY | O_CLOEXEC);
	if (*fd < 0)
		return err_errno(err, DS_NOINPUT, "cannot open '%s'", path);
	if (fstat(*fd, &st) == 0 && S_ISDIR(st.st_mode)) {
		close(*fd);
		return err_set(err, DS_NOINPUT, "cannot read '%s': it is a directory", path);
	}
	return 0;
}

/* Calls `each` for every complete frame up to the end of input after END. */
static int read_frames(int fd, const char *name, int (*each)(struct frame *f, void *ctx, struct ds_err *err), void *ctx,
	uint64_t *bytes, struct ds_err *err)
{
	struct frame_reader *r;
	enum frame_event ev = FRAME_AGAIN;
	struct frame *f;
	int rc = frame_reader_new(&r, fd, name, max_frame, err);

	while (!rc && ev != FRAME_EOF) {
		rc = frame_reader_next(r, &ev, &f, err);
		if (!rc && ev == FRAME_AGAIN) /* someone else has made our descriptor non-blocking */
			usleep(10000);
		if (!rc && ev == FRAME_BODY)
			rc = each(f, ctx, err);
	}
	*bytes = r ? frame_reader_bytes(r) : 0;
	frame_reader_free(r);
	return rc;
}

/* ---- dump ---- */

struct summary { double min, max, sum; uint64_t nan, n; };

static double value_at(enum dtype type, const uint8_t *p, uint64_t i)
{
	p += i * dtype_size(type);
	switch (type) {
	case DT_F32: { float v; memcpy(&v, p, 4); return (double)v; }
	case DT_F16: { uint16_t v; memcpy(&v, p, 2); return (double)f16_to_f32(v); }
	case DT_BF16: { uint16_t v; memcpy(&v, p, 2); return (double)bf16_to_f32(v); }
	case DT_F8_E4M3: return (double)e4m3_to_f32(*p);
	case DT_I32: { int32_t v; memcpy(&v, p, 4); return v; }
	case DT_U32: { uint32_t v; memcpy(&v, p, 4); return v; }
	case DT_I64: { int64_t v; memcpy(&v, p, 8); return (double)v; }
	default: return *p;
	}
}

static int64_t int_at(enum dtype type, const uint8_t *p, uint64_t i)
{
	int64_t v;

	if (type != DT_I64) /* exact as a double */
		return (int64_t)value_at(type, p, i);
	memcpy(&v, p + i * sizeof v, sizeof v);
	return v;
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

static void put_hex(struct jw *w, const char *key, uint64_t v)
{
	char text[17];

	snprintf(text, sizeof text, "%016llx", (unsigned long long)v);
	jw_key(w, key);
	jw_str(w, text);
}

static void put_number(struct jw *w, const char *key, double v)
{
	jw_key(w, key);
	jw_real(w, v);
}

static void put_tensor(struct jw *w, const struct frame *f, const struct frame_tensor *t)
{
	const uint8_t *p = t->nbytes ? f->data + t->offset : (const uint8_t *)"";
	uint64_t n = t->nbytes / dtype_size(t->type);
	struct summary s = summarise(t->type, p, n);
	bool real = t->type == DT_F32 || t->type == DT_F16 || t->type == DT_BF16 || t->type == DT_F8_E4M3;

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
	put_number(w, "min", s.n > s.nan ? s.min : (double)NAN);
	put_number(w, "max", s.n > s.nan ? s.max : (double)NAN);
	if (real) {
		put_number(w, "mean", s.n > s.nan ? s.sum / (double)(s.n - s.nan) : (double)NAN);
		jw_key(w, "nan");
		jw_uint(w, s.nan);
	}
	put_hex(w, "xxh", XXH3_64bits(p, t->nbytes));
	jw_key(w, "first");
	jw_arr(w);
	for (uint64_t i = 0; i < n && i < (uint64_t)first_values; i++) {
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
static void put_tensors(struct jw *w, const struct frame *f, int *bad)
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
				put_tensor(w, f, &t);
		jw_arr_end(w);
	}
	if (frame_check_payload(f, &err))
		*bad = log_err(&err);
}

struct dump { struct buf line; int bad; bool live; };

static int dump_frame(struct frame *f, void *ctx, struct ds_err *err)
{
	struct dump *d = ctx;
	struct jw w;

	d->line.len = 0;
	jw_init(&w, &d->line);
	jw_obj(&w);
	jw_key(&w, "number");
	jw_uint(&w, f->number);
	jw_key(&w, "offset");
	jw_uint(&w, f->offset);
	jw_key(&w, "type");
	jw_str(&w, frame_type_name(f->type));
	put_hex(&w, "stream", f->stream);
	jw_key(&w, "seq");
	jw_uint(&w, f->seq);
	put_flags(&w, f->flags);
	jw_key(&w, "meta");
	meta_json(&w, f->meta);
	jw_key(&w, "bytes");
	jw_uint(&w, f->data_len);
	put_tensors(&w, f, &d->bad);
	jw_obj_end(&w);
	buf_add(&d->line, "\n", 1);
	if (d->line.nomem)
		return err_nomem(err, d->line.len, "a line of output");
	if (fwrite(d->line.p, 1, d->line.len, stdout) != d->line.len || (d->live && fflush(stdout)))
		return err_errno(err, DS_IO, "cannot write to '<stdout>'");
	return 0;
}

static int dump(const char *path, struct ds_err *err)
{
	struct dump d = { 0 };
	const char *name;
	struct stat st;
	uint64_t bytes;
	int fd, rc = open_input(path, &fd, &name, err);

	if (rc)
		return rc;
	d.live = fstat(fd, &st) || !S_ISREG(st.st_mode);
	rc = read_frames(fd, name, dump_frame, &d, &bytes, err);
	if (fd != STDIN_FILENO)
		close(fd);
	buf_free(&d.line);
	if (!rc && d.bad) {
		err->text[0] = 0;
		return d.bad;
	}
	return rc;
}

/* ---- check ---- */

struct check { uint64_t frames; const char *name; };

/* Every row is sound, names are distinct, scales exist. */
static int check_tensors(const struct frame *f, struct ds_err *err)
{
	struct frame_tensor t, other;
	size_t n = frame_tensor_count(f);
	struct meta rows;
	size_t k;
	int rc = 0;

	if (meta_array(f->meta, "tensors", &rows, &k) == META_TYPE)
		return err_set(err, DS_DATA, "frame %llu: 'tensors' is no array", (unsigned long long)f->number);
	for (size_t i = 0; i < n && !rc; i++) {
		rc = frame_tensor_at(f, i, &t, err);
		if (!rc && t.scale[0])
			rc = frame_tensor_get(f, t.scale, &other, err);
		if (!rc)
			rc = frame_tensor_get(f, t.name, &other, err);
		if (!rc && (other.offset != t.offset || other.nbytes != t.nbytes))
			rc = err_set(err, DS_DATA, "frame %llu: two tensors are called '%s'",
				(unsigned long long)f->number, t.name);
	}
	return rc;
}

static int check_frame(struct frame *f, void *ctx, struct ds_err *err)
{
	struct check *c = ctx;
	struct hello h;
	int rc = 0;

	c->frames = f->number + 1;
	if (f->number == 0)
		rc = hello_get(f, &h, err);
	else if (f->type == FRAME_HELLO)
		rc = err_set(err, DS_DATA, "frame %llu is a second hello", (unsigned long long)f->number);
	if (!rc)
		rc = check_tensors(f, err);
	if (!rc)
		rc = frame_check_payload(f, err);
	return rc ? err_prefix(err, "'%s'", c->name) : 0;
}

static int check_one(const char *path, struct ds_err *err)
{
	struct check c = { 0 };
	uint64_t bytes;
	int fd, rc = open_input(path, &fd, &c.name, err);

	if (rc)
		return rc;
	rc = read_frames(fd, c.name, check_frame, &c, &bytes, err);
	if (fd != STDIN_FILENO)
		close(fd);
	if (!rc &&
		printf("%s: %llu frames, %llu bytes, ok\n", c.name, (unsigned long long)c.frames,
			(unsigned long long)bytes) < 0)
		rc = err_errno(err, DS_IO, "cannot write to '<stdout>'");
	return rc;
}

/* All files are checked; the first error's code is the program's. */
static int check(int argc, char **argv, struct ds_err *err)
{
	int rc = 0;

	for (int i = 0; i < argc || i == 0; i++) {
		int bad = check_one(argc ? argv[i] : "-", err);

		if (bad)
			log_err(err);
		if (!rc)
			rc = bad;
	}
	err->text[0] = 0;
	return rc;
}

/* ---- main ---- */

static int run(int argc, char **argv, struct ds_err *err)
{
	if (argc < 1)
		return err_set(err, DS_USAGE, "no command given: dump or check; try 'ds-frame --help'");
	if (strcmp(argv[0], "check") == 0)
		return check(argc - 1, argv + 1, err);
	if (strcmp(argv[0], "dump") != 0)
		return err_set(err, DS_USAGE, "unknown command '%s': dump or check; try 'ds-frame --help'", argv[0]);
	if (argc > 2)
		return err_set(err, DS_USAGE, "unexpected operand '%s': dump takes one file", argv[2]);
	return dump(argc > 1 ? argv[1] : "-", err);
}

int main(int argc, char **argv)
{
	struct ds_err err = { 0 };
	int rc;

	log_init(program.name, 0, 0);
	rc = opt_parse(&program, &argc, &argv, false, &err);
	if (!rc) {
		log_init(program.name, 0, opt_verbose);
		rc = run(argc, argv, &err);
	}
	if ((fflush(stdout) || ferror(stdout)) && rc != DS_IO) {
		rc = rc ? rc : DS_IO;
		err_errno(&err, DS_IO, "cannot write to '<stdout>'");
	}
	if (rc && err.text[0])
		log_err(&err);
	return rc;
}

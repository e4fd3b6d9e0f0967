/* ds-kvstore: the external KV cache.  Serves a store of KV blocks; looks after a store's directory. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/log.h"
#include "base/opt.h"
#include "base/outfile.h"
#include "base/time.h"
#include "base/version.h"
#include "frame/hello.h"
#include "serve/main.h"
#include "serve/store_list.h"
#include "serve/store_service.h"
#include "store/dir.h"

static struct store_options store;
static struct store_service_options service = { .program = "ds-kvstore", .ready_fd = -1 };
static struct stage_options io = STAGE_DEFAULTS; /* of which --log-format */
static struct opt_list listens;
static const char *dir, *address, *compress, *admit, *output;
static int64_t ttl;
static bool json, force;

#define SERVE "serve"
#define WRITERS "serve gc import"

static const struct opt options[] = {
	{ .name = "listen", .letter = 'l', .arg = "ADDR",
	  .help = "serve on unix:PATH, tcp:HOST:PORT or fd:N; repeatable",
	  .type = OPT_LIST, .dst = &listens, .commands = SERVE },
	{ .name = "dir", .letter = 'd', .arg = "PATH", .help = "the store is in this directory", .type = OPT_STR,
	  .dst = &dir, .commands = SERVE },
	{ .name = "store", .arg = "ADDR", .help = "the store is there: redis://HOST:PORT, another ds-kvstore, ...",
	  .type = OPT_STR, .dst = &address, .commands = SERVE },
	{ .name = "password-file", .arg = "FILE", .help = "its first line is the Redis server's password",
	  .type = OPT_STR, .dst = &store.password, .commands = "serve stat" },
	{ .name = "capacity", .arg = "SIZE", .help = "most bytes of the directory's files, kept there (0: no limit)",
	  .type = OPT_SIZE, .dst = &store.capacity, .commands = WRITERS },
	{ .name = "segment", .arg = "SIZE", .help = "bytes of one file (0: what suits the capacity)", .def = "0",
	  .type = OPT_SIZE, .dst = &store.segment, .commands = WRITERS },
	{ .name = "sync", .help = "every put and deletion is on disk before it is answered", .type = OPT_FLAG,
	  .dst = &store.sync, .commands = WRITERS },
	{ .name = "ttl", .arg = "TIME", .help = "what is put expires after so long (0: never)", .def = "0",
	  .type = OPT_TIME, .dst = &ttl, .commands = WRITERS },
	{ .name = "compress", .arg = "none|zstd", .help = "how payloads are stored", .def = "none", .type = OPT_STR,
	  .dst = &compress, .commands = WRITERS },
	{ .name = "admit", .arg = "all|second", .help = "take what is put, or only what was asked for before",
	  .def = "all", .type = OPT_STR, .dst = &admit, .commands = SERVE },
	{ .name = "resp", .arg = "ADDR", .help = "serve the Redis protocol there, too", .type = OPT_STR,
	  .dst = &service.resp, .commands = SERVE },
	{ .name = "max-frame", .arg = "SIZE", .help = "largest payload accepted", .def = "256M", .type = OPT_SIZE,
	  .dst = &service.max_frame, .min = 1 << 20, .max = (int64_t)2 << 30, .env = true },
	{ .name = "max-clients", .arg = "N", .help = "most connections at a time", .def = "1024", .type = OPT_INT,
	  .dst = &service.max_clients, .min = 1, .max = 65536, .commands = SERVE },
	{ .name = "memory", .arg = "SIZE", .help = "for payloads on their way, of all connections", .def = "1G",
	  .type = OPT_SIZE, .dst = &service.memory, .min = 1 << 20, .max = (int64_t)1 << 50, .commands = SERVE },
	{ .name = "peer-timeout", .arg = "TIME", .help = "drop a client that stands still in a request", .def = "30s",
	  .type = OPT_TIME, .dst = &service.peer_ns, .min = 1000000, .max = (int64_t)1 << 60, .env = true,
	  .commands = SERVE },
	{ .name = "metrics", .arg = "ADDR|FILE", .help = "Prometheus text, /healthz, /readyz, by HTTP or to a file",
	  .type = OPT_STR, .dst = &service.metrics, .env = true, .commands = SERVE },
	{ .name = "insecure", .help = "let addresses be TCP ones beyond loopback, without TLS", .type = OPT_FLAG,
	  .dst = &service.anywhere, .commands = SERVE },
	{ .name = "ready-fd", .arg = "N", .help = "write a newline to descriptor N when serving", .type = OPT_INT,
	  .dst = &service.ready_fd, .max = 1 << 20, .commands = SERVE },
	{ .name = "drain-timeout", .arg = "TIME", .help = "let running requests finish this long after SIGTERM",
	  .def = "25s", .type = OPT_TIME, .dst = &service.drain_ns, .env = true, .commands = SERVE },
	{ .name = "json", .help = "stat, ls, verify, gc: as JSON", .type = OPT_FLAG, .dst = &json,
	  .commands = "stat ls verify gc" },
	{ .name = "output", .letter = 'o', .arg = "FILE", .help = "export: write there, renamed when complete",
	  .type = OPT_STR, .dst = &output, .commands = "export" },
	{ .name = "force", .letter = 'f', .help = "export: overwrite FILE; write to a terminal", .type = OPT_FLAG,
	  .dst = &force, .commands = "export" },
	{ .name = "log-format", .arg = "text|json", .help = "how messages on stderr are written", .def = "text",
	  .type = OPT_STR, .dst = &io.log_format, .env = true },
	{ 0 },
};

static const struct opt_program program = {
	.name = "ds-kvstore",
	.usage = "--dir PATH|--store ADDR [-l ADDR]... [options]  or  stat DIR|ADDR  or  "
		 "ls|verify|gc|export|import DIR [FILE]",
	.purpose = "The external KV cache: keeps blocks of KV on disk for all prompts that begin with the same tokens.",
	.example = "ds-kvstore --listen unix:/run/kv.sock --dir /var/cache/dsutils --capacity 200G",
	.opts = options,
};

/* ---- what is common ---- */

static int settle(struct ds_err *err)
{
	store.zstd = compress && strcmp(compress, "zstd") == 0;
	if (compress && !store.zstd && strcmp(compress, "none") != 0)
		return err_set(err, DS_USAGE, "--compress: '%s' is neither 'none' nor 'zstd'", compress);
	store.admission = admit && strcmp(admit, "second") == 0 ? STORE_ADMIT_SECOND : STORE_ADMIT_ALL;
	if (admit && store.admission == STORE_ADMIT_ALL && strcmp(admit, "all") != 0)
		return err_set(err, DS_USAGE, "--admit: '%s' is neither 'all' nor 'second'", admit);
	if (!store.capacity && opt_given(&program, "capacity"))
		store.capacity = STORE_NO_LIMIT;
	store.ttl_ns = (uint64_t)ttl;
	store.max_frame = service.max_frame;
	return 0;
}

static int open_store(struct store **s, const char *scheme, const char *rest, struct ds_err *err)
{
	struct buf addr = { 0 };
	int rc;

	buf_printf(&addr, "%s%s", scheme, rest);
	rc = addr.nomem ? err_nomem(err, addr.len, "an address") : store_open(s, addr.p, &store, err);
	buf_free(&addr);
	return rc;
}

static int print(struct buf *b, struct ds_err *err)
{
	int rc = 0;

	if (b->nomem)
		rc = err_nomem(err, b->len, "what is to be printed");
	else if (b->len && fwrite(b->p, 1, b->len, stdout) != b->len)
		rc = err_errno(err, DS_IO, "cannot write to '<stdout>'");
	b->len = 0;
	return rc;
}

/* ---- serving ---- */

/* What would have no effect was meant to have one. */
static int check_given(bool listening, struct ds_err *err)
{
	static const char *const of_dir[] = { "capacity", "segment", "sync", "compress", "admit", NULL };
	static const char *const of_service[] = { "metrics", "ready-fd", "max-clients", "peer-timeout", "insecure",
		"drain-timeout", NULL };
	bool redis = address && strncmp(address, "redis", 5) == 0;

	for (size_t i = 0; address && strncmp(address, "dir:", 4) != 0 && of_dir[i]; i++)
		if (opt_given(&program, of_dir[i]))
			return err_set(err, DS_USAGE, "--%s is of a store that is a directory (--dir), '%s' is none",
				of_dir[i], address);
	for (size_t i = 0; !listening && of_service[i]; i++)
		if (opt_given(&program, of_service[i]))
			return err_set(err, DS_USAGE, "--%s is of a service: say --listen or --resp, too",
				of_service[i]);
	if (!redis && opt_given(&program, "password-file"))
		return err_set(err, DS_USAGE, "--password-file is of a Redis server, '%s' is none",
			service.store_name);
	return 0;
}

/* A capacity that is less than what was there. */
static void tell_evicted(struct store *s)
{
	struct store_session *ss;
	struct store_stat st;
	struct ds_err err;

	if (store_begin(&ss, s, &err))
		return;
	if (!store_stat(ss, &st, &err) && st.evicted)
		log_msg(LOG_WARN, "'%s' held more than its capacity: %" PRIu64 " item%s of %" PRIu64 " bytes went",
			dir, st.evicted, plural(st.evicted), st.evicted_bytes);
	store_end(ss);
}

static int serve(struct ds_err *err)
{
	const char *all = getenv("DS_LISTEN");
	struct store *s;
	int rc;

	if (!dir == !address)
		return err_set(err, DS_USAGE, "%s; try '%s --help'", dir ? "--dir and --store are two stores" :
			"no store is named: --dir PATH or --store ADDR", program.name);
	service.listen = listens.v;
	service.listens = listens.n;
	if (!listens.n && all && *all) {
		service.listen = &all;
		service.listens = 1;
	}
	service.store_name = dir ? dir : address;
	rc = check_given(service.listens || service.resp, err);
	if (rc)
		return rc;
	if (service.listens || service.resp)
		store_service_starting();
	rc = open_store(&s, dir ? "dir:" : "", service.store_name, err);
	if (rc)
		return rc;
	if (dir)
		tell_evicted(s);
	rc = store_service_run(s, &service, err);
	store_close(s);
	return rc;
}

/* ---- stat ---- */

static bool is_directory(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static void print_counter(struct buf *b, struct jw *w, const char *name, uint64_t v)
{
	if (json)
		jw_put_uint(w, name, v);
	else
		buf_printf(b, "%-16s %" PRIu64 "\n", name, v);
}

/* dead: of a directory, of which the other counters than these say nothing: they are of a process. */
static void put_stat(struct buf *b, const struct store_stat *st, const uint64_t *dead)
{
	struct jw w;

	jw_init(&w, b);
	if (json)
		jw_obj(&w);
	for (const struct store_counter *c = store_counters; c->name; c++) {
		uint64_t v;

		if (dead && !opt_listed("items bytes capacity segments", ' ', c->name))
			continue;
		memcpy(&v, (const uint8_t *)st + c->offset, sizeof v);
		print_counter(b, &w, c->name, v);
	}
	if (dead)
		print_counter(b, &w, "dead_bytes", *dead);
	if (json) {
		jw_obj_end(&w);
		buf_str(b, "\n");
	}
}

static int run_stat(const char *where, struct ds_err *err)
{
	bool named = strncmp(where, "dir:", 4) == 0, path = named || is_directory(where) || !strchr(where, ':');
	struct store_session *ss = NULL;
	struct buf b = { 0 };
	struct store_stat st;
	struct store *s;
	uint64_t dead;
	int rc;

	store.read_only = true;
	rc = open_store(&s, path && !named ? "dir:" : "", where, err);
	if (rc)
		return rc;
	rc = store_begin(&ss, s, err);
	if (!rc) {
		store_deadline(ss, time_mono_ns() + 10000000000);
		rc = store_stat(ss, &st, err);
	}
	if (!rc && path)
		rc = dir_dead(s, &dead, err);
	if (!rc)
		put_stat(&b, &st, path ? &dead : NULL);
	if (!rc)
		rc = print(&b, err);
	buf_free(&b);
	if (ss)
		store_end(ss);
	store_close(s);
	return rc;
}

/* ---- ls ---- */

static int ls_item(void *ctx, const struct store_item *item, const char *segment, uint64_t offset, struct ds_err *err)
{
	struct buf *b = ctx;

	if (json)
		store_item_json(b, item, segment, offset);
	else
		store_item_text(b, item, segment, offset);
	return b->len > 1 << 16 ? print(b, err) : 0;
}

static int run_ls(const char *path, struct ds_err *err)
{
	struct buf b = { 0 };
	int rc;

	if (!json)
		store_item_title(&b);
	rc = dir_list(path, ls_item, &b, err);
	if (!rc || rc == DS_NO)
		rc = print(&b, err);
	buf_free(&b);
	return rc;
}

/* ---- verify, gc ---- */

static void tell_fault(void *ctx, const char *line)
{
	(void)ctx;
	log_msg(LOG_ERROR, "%s", line);
}

static int report(const struct dir_report *r, bool gc, struct ds_err *err)
{
	const struct { const char *name; uint64_t v; } rows[] = {
		{ "segments", r->segments }, { "items", r->items }, { "bytes", r->bytes },
		{ "dead_bytes", r->dead_bytes },
		{ "bad_items", r->bad_items }, { "torn_bytes", r->torn_bytes }, { "bad_indices", r->bad_indices },
		{ "evicted", r->evicted }, { "evicted_bytes", r->evicted_bytes }, /* by gc */
	};
	struct buf b = { 0 };
	struct jw w;
	int rc;

	jw_init(&w, &b);
	if (json)
		jw_obj(&w);
	for (size_t i = 0; i < sizeof rows / sizeof *rows - (gc ? 0 : 2); i++)
		print_counter(&b, &w, rows[i].name, rows[i].v);
	if (json) {
		jw_obj_end(&w);
		buf_str(&b, "\n");
	}
	rc = print(&b, err);
	buf_free(&b);
	return rc;
}

static int run_verify(const char *path, struct ds_err *err)
{
	struct dir_report r = { 0 };
	struct ds_err second;
	int rc = dir_verify(path, tell_fault, NULL, &r, err);

	if (rc && rc != DS_NO)
		return rc;
	if (rc == DS_NO)
		err->text[0] = 0; /* each fault was told */
	return report(&r, false, &second) ? (*err = second, second.code) : rc;
}

static int run_gc(const char *path, struct ds_err *err)
{
	struct dir_report r = { 0 };
	int rc = dir_gc(path, &store, tell_fault, NULL, &r, err);

	return rc ? rc : report(&r, true, err);
}

/* ---- export, import ---- */

static int write_stream(const char *path, struct frame_writer *w, struct dir_copied *c, struct ds_err *err)
{
	struct hello h = { .minor = 1, .role = "store" };
	struct meta_builder *b = meta_new();
	int rc;

	if (!b)
		return err_nomem(err, sizeof h, "a frame");
	snprintf(h.program, sizeof h.program, "%s", program.name);
	snprintf(h.version, sizeof h.version, "%s", DS_VERSION);
	hello_put(b, &h);
	rc = frame_write(w, FRAME_HELLO, 0, 0, b, NULL, 0, false, err);
	meta_free(b);
	if (!rc)
		rc = dir_export(path, w, c, err);
	if (!rc)
		rc = frame_write_end(w, err);
	return rc;
}

static int run_export(const char *path, struct ds_err *err)
{
	struct frame_writer *w = NULL;
	struct dir_copied c = { 0 };
	struct outfile o;
	int rc = outfile_open(&o, output, force, false, err);

	if (rc)
		return rc;
	rc = frame_writer_new(&w, o.fd, o.path, err);
	if (!rc)
		rc = write_stream(path, w, &c, err);
	frame_writer_free(w);
	if (!rc)
		rc = outfile_commit(&o, err);
	outfile_discard(&o);
	if (!rc)
		log_msg(LOG_INFO, "%" PRIu64 " item%s exported", c.items, plural(c.items));
	if (!rc && c.left_out)
		rc = err_set(err, DS_NO, "'%s': %" PRIu64 " item%s damaged or cannot be read, and left out; "
			"'verify' says which", path, c.left_out, c.left_out == 1 ? " is" : "s are");
	return rc;
}

static int run_import(const char *path, const char *file, struct ds_err *err)
{
	bool in = !file || strcmp(file, "-") == 0;
	FILE *f = in ? stdin : fopen(file, "re");
	struct dir_copied c = { 0 };
	int rc;

	if (!f)
		return err_errno(err, DS_NOINPUT, "cannot open '%s'", file);
	rc = dir_import(path, &store, fileno(f), in ? "<stdin>" : file, &c, err);
	if (!in)
		fclose(f);
	if (!rc)
		log_msg(LOG_INFO, "%" PRIu64 " item%s imported, %" PRIu64 " there already", c.items, plural(c.items),
			c.already);
	return rc;
}

/* ---- sub-commands ---- */

/* unix: and tcp: may begin a directory's name, if there is such a one. */
static bool is_address(const char *s)
{
	return strstr(s, "://") || ((!strncmp(s, "unix:", 5) || !strncmp(s, "tcp:", 4)) && access(s, F_OK));
}

static int command(const char *name, int argc, char **argv, struct ds_err *err)
{
	static const char *const names[] = { "stat", "ls", "verify", "gc", "export", "import" };
	bool known = false;
	int rc;

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		known = known || strcmp(name, names[i]) == 0;
	if (!known)
		return err_set(err, DS_USAGE, "'%s' is no sub-command; try '%s --help'", name, program.name);
	rc = opt_check_command(&program, name, err);
	if (rc)
		return rc;
	if (argc < 1 || argc > (strcmp(name, "import") == 0 ? 2 : 1))
		return err_set(err, DS_USAGE, argc ? "%s: unexpected operand '%s'; try '%s --help'" :
			"%s: no directory%s is named; try '%s --help'", name, argc ? argv[argc - 1] : "", program.name);
	if (name[0] != 's' && is_address(argv[0]))
		return err_set(err, DS_USAGE, "%s: '%s' is no directory; of other stores there is 'stat' alone", name,
			argv[0]);
	signal(SIGXFSZ, SIG_IGN); /* EFBIG says it, and what was begun is removed */
	switch (name[0]) {
	case 's': return run_stat(argv[0], err);
	case 'l': return run_ls(argv[0], err);
	case 'v': return run_verify(argv[0], err);
	case 'g': return run_gc(argv[0], err);
	case 'e': return run_export(argv[0], err);
	default: return run_import(argv[0], argc > 1 ? argv[1] : NULL, err);
	}
}

static int run(int argc, char **argv, struct ds_err *err)
{
	int rc = stage_log(&program, &io, err);

	if (!rc)
		rc = settle(err);
	if (rc)
		return rc;
	if (argc && strcmp(argv[0], SERVE) != 0)
		return command(argv[0], argc - 1, argv + 1, err);
	if (argc > 1)
		return err_set(err, DS_USAGE, "unexpected operand '%s'; try '%s --help'", argv[1], program.name);
	rc = opt_check_command(&program, SERVE, err);
	return rc ? rc : serve(err);
}

int main(int argc, char **argv)
{
	struct ds_err err = { 0 };
	int rc;

	log_init(program.name, 0, 0);
	rc = opt_parse(&program, &argc, &argv, false, &err);
	if (!rc)
		rc = run(argc, argv, &err);
	if ((fflush(stdout) || ferror(stdout)) && !rc)
		rc = err_errno(&err, DS_IO, "cannot write to '<stdout>'");
	return stage_exit(&err, rc);
}

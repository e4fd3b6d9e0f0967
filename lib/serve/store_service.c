#include "serve/store_service.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "base/time.h"
#include "serve/internal.h"
#include "serve/store_service_impl.h"
#include "store/resp_front.h"

#define RESP_STORE_NS ((int64_t)5000000000) /* clients of Redis do not wait as long as ours */
#define METRICS_NS ((int64_t)10000000000) /* from one file to the next, while there are clients */
#define CUT_NS ((int64_t)2000000000)      /* for threads to end whose sockets were shut */

/* ---- what there is ---- */

static bool is_address(const char *s)
{
	return strncmp(s, "unix:", 5) == 0 || strncmp(s, "tcp:", 4) == 0 || strncmp(s, "fd:", 3) == 0;
}

static int open_door(struct store_service *sv, enum door_kind kind, const char *addr, struct ds_err *err)
{
	struct door *d = &sv->doors[sv->door_count];
	char at[300];
	int rc = addr_parse(addr, &d->addr, err);

	d->kind = kind;
	if (!rc)
		rc = addr_listen(&d->addr, sv->o->anywhere, &d->fd, err);
	if (rc)
		return rc;
	sv->door_count++;
	addr_local(d->fd, at, sizeof at);
	log_msg(LOG_INFO, "listening at '%s'", at[0] ? at : d->addr.text);
	return 0;
}

static int open_doors(struct store_service *sv, struct ds_err *err)
{
	const struct store_service_options *o = sv->o;
	int rc = o->listens > STORE_SERVICE_DOORS ?
		err_set(err, DS_USAGE, "--listen is given more than %d times", STORE_SERVICE_DOORS) : 0;

	for (size_t i = 0; i < o->listens && !rc; i++)
		rc = open_door(sv, DOOR_STORE, o->listen[i], err);
	if (!rc && o->resp)
		rc = open_door(sv, DOOR_RESP, o->resp, err);
	if (!rc && o->metrics && is_address(o->metrics))
		rc = open_door(sv, DOOR_HTTP, o->metrics, err);
	else if (!rc && o->metrics)
		sv->metrics_file = o->metrics;
	return rc;
}

static void close_doors(struct store_service *sv)
{
	for (size_t i = 0; i < sv->door_count; i++) {
		addr_unlisten(&sv->doors[i].addr, sv->doors[i].fd);
		sv->doors[i].fd = -1;
	}
}

static int begin(struct store_service *sv, struct store *s, const struct store_service_options *o, struct ds_err *err)
{
	const struct store_server_options server = { .program = o->program, .max_frame = o->max_frame,
		.memory = o->memory, .peer_ns = o->listens || o->resp ? o->peer_ns : 0 };
	struct resp_options resp = { .max_value = o->max_frame, .memory = o->memory, .stall_ns = o->peer_ns,
		.store_ns = o->peer_ns < RESP_STORE_NS ? o->peer_ns : RESP_STORE_NS };
	int rc;

	memset(sv, 0, sizeof *sv);
	sv->o = o;
	sv->store = s;
	sv->began = time_mono_ns();
	pthread_mutex_init(&sv->lock, NULL);
	pthread_mutex_init(&sv->figures, NULL);
	sv->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (sv->wake < 0)
		return err_errno(err, DS_OS, "cannot make an event descriptor");
	rc = store_begin(&sv->ss, s, err);
	if (!rc)
		rc = store_server_new(&sv->server, s, &server, err);
	if (!rc)
		resp.pool = store_server_pool(sv->server);
	if (!rc && o->resp)
		rc = resp_front_new(&sv->front, s, &resp, err);
	return rc;
}

static void end(struct store_service *sv)
{
	resp_front_free(sv->front);
	store_server_free(sv->server);
	if (sv->ss)
		store_end(sv->ss);
	if (sv->wake >= 0)
		close(sv->wake);
	pthread_mutex_destroy(&sv->figures);
	pthread_mutex_destroy(&sv->lock);
}

/* ---- a service ---- */

/* Each client is a descriptor, and so is each file of the store. */
static void more_descriptors(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
		r.rlim_cur = r.rlim_max;
		setrlimit(RLIMIT_NOFILE, &r);
	}
}

struct turn {
	bool stop;         /* all guests are to go now */
	int64_t drain_by;  /* then they are cut; 0: not draining */
	int64_t cut_by;    /* then their threads are given up; 0: not cut */
};

static void on_signal(struct store_service *sv, struct turn *t, int sig)
{
	if (sig == SIGUSR1) {
		figures_state(sv);
		return;
	}
	if (sv->draining) {
		t->stop = t->stop || sig == SIGNAL_AGAIN;
		return;
	}
	sv->draining = true;
	t->drain_by = signals_since() + sv->o->drain_ns;
	notify_stopping();
	for (size_t i = 0; i < sv->door_count; i++) /* who asks whether we are ready is answered up to the end */
		if (sv->doors[i].kind != DOOR_HTTP) {
			addr_unlisten(&sv->doors[i].addr, sv->doors[i].fd);
			sv->doors[i].fd = -1;
		}
	guests_drain(sv);
}

static void write_figures(struct store_service *sv)
{
	struct ds_err err;

	sv->metrics_at = time_mono_ns();
	if (figures_write(sv, &err)) {
		log_msg(LOG_WARN, "%s", err.text);
		sv->metrics_at += METRICS_NS; /* not a line for each try */
	}
}

static void sooner(int64_t *due, int64_t t)
{
	if (*due < 0 || t < *due)
		*due = t;
}

/* Milliseconds until something is due by the clock; -1: nothing is. */
static int patience(struct store_service *sv, const struct turn *t, int64_t now)
{
	int64_t due = -1, ms;

	for (size_t i = 0; i < sv->door_count; i++)
		if (sv->doors[i].after > now)
			sooner(&due, sv->doors[i].after);
	if (t->cut_by)
		sooner(&due, t->cut_by);
	else if (t->drain_by)
		sooner(&due, t->drain_by);
	if (sv->metrics_file && guests_count(sv))
		sooner(&due, sv->metrics_at + METRICS_NS);
	if (due < 0)
		return -1;
	ms = (due - now + 999999) / 1000000;
	return ms < 0 ? 0 : ms > INT_MAX ? INT_MAX : (int)ms;
}

static int wait(struct store_service *sv, const struct turn *t, struct ds_err *err)
{
	struct pollfd p[STORE_SERVICE_DOORS + 4];
	int64_t now = time_mono_ns();
	uint64_t ended;
	ssize_t n;

	p[0] = (struct pollfd){ .fd = signals_fd(), .events = POLLIN };
	p[1] = (struct pollfd){ .fd = sv->wake, .events = POLLIN };
	for (size_t i = 0; i < sv->door_count; i++)
		p[i + 2] = (struct pollfd){ .fd = sv->doors[i].after > now ? -1 : sv->doors[i].fd, .events = POLLIN };
	if (poll(p, sv->door_count + 2, patience(sv, t, now)) < 0)
		return errno == EINTR ? 0 : err_errno(err, DS_OS, "cannot poll");
	if (p[1].revents) {
		n = read(sv->wake, &ended, sizeof ended);
		(void)n;
		guests_bury(sv);
	}
	now = time_mono_ns();
	for (size_t i = 0; i < sv->door_count; i++)
		if (p[i + 2].fd >= 0 && p[i + 2].revents)
			guests_accept(sv, &sv->doors[i], now);
	return 0;
}

/* Guests of the doors that count: an HTTP client holds nobody. */
static bool all_gone(struct store_service *sv)
{
	bool gone = true;

	pthread_mutex_lock(&sv->lock);
	for (struct guest *g = sv->here; g; g = g->next)
		gone = gone && g->kind == DOOR_HTTP;
	pthread_mutex_unlock(&sv->lock);
	return gone;
}

static int serve(struct store_service *sv, struct ds_err *err)
{
	struct turn t = { 0 };
	int rc = 0, sig;

	while (!rc && !(sv->draining && all_gone(sv))) {
		int64_t now;

		rc = wait(sv, &t, err);
		while ((sig = signals_next()) != 0)
			on_signal(sv, &t, sig);
		now = time_mono_ns();
		if (sv->metrics_file && now - sv->metrics_at >= METRICS_NS)
			write_figures(sv);
		if (!t.cut_by && (t.stop || (t.drain_by && now >= t.drain_by)) && !all_gone(sv)) {
			rc = err_set(err, DS_TEMP, t.stop ? "stopped by a second signal" :
				"clients did not end within --drain-timeout");
			log_err(err);
			guests_cut(sv);
			t.cut_by = now + CUT_NS;
			signals_last(CUT_NS);
			rc = 0;
		}
		if (t.cut_by && now >= t.cut_by)
			_exit(DS_TEMP); /* a thread is stuck in its store: nothing that it uses can be freed */
	}
	if (!rc && t.cut_by)
		rc = DS_TEMP;
	if (rc == DS_TEMP)
		err->text[0] = 0; /* said already */
	return rc;
}

/* Nobody is served yet, and a store can be left at any time. */
static void end_at_once(int sig)
{
	(void)sig;
	_exit(0);
}

void store_service_starting(void)
{
	signal(SIGHUP, SIG_IGN);
	signal(SIGUSR1, SIG_IGN);
	signal(SIGTERM, end_at_once);
	signal(SIGINT, end_at_once);
}

static int run_service(struct store_service *sv, struct ds_err *err)
{
	int rc = signals_service(sv->o->drain_ns, err); /* from here on sockets are to be removed */

	if (rc)
		return rc;
	rc = open_doors(sv, err);
	if (!rc) {
		if (sv->metrics_file)
			write_figures(sv);
		notify_ready(sv->o->ready_fd);
		rc = serve(sv, err);
		guests_cut(sv); /* who still asks for figures */
		while (guests_count(sv))
			poll(NULL, 0, 5);
		guests_bury(sv);
		if (sv->metrics_file)
			write_figures(sv);
	}
	signals_done();
	close_doors(sv);
	return rc;
}

/* ---- a filter ---- */

static int run_filter(struct store_service *sv, struct ds_err *err)
{
	struct ds_err refused;
	int rc;

	if (isatty(STDOUT_FILENO))
		return err_set(err, DS_USAGE, "frames are not written to a terminal");
	fd_grow_pipe(STDIN_FILENO);
	fd_grow_pipe(STDOUT_FILENO);
	rc = store_serve(sv->server, STDIN_FILENO, STDOUT_FILENO, "<stdin>", &refused, err);
	if (rc == DS_SIGPIPE)
		err->text[0] = 0;
	if (!rc && refused.code) {
		*err = refused;
		rc = refused.code;
	}
	return rc;
}

int store_service_run(struct store *s, const struct store_service_options *o, struct ds_err *err)
{
	struct store_service *sv = mem_calloc(1, sizeof *sv);
	int rc;

	if (!sv)
		return err_nomem(err, sizeof *sv, "a service");
	signal(SIGPIPE, SIG_IGN);
	more_descriptors();
	rc = begin(sv, s, o, err);
	if (!rc)
		rc = o->listens || o->resp ? run_service(sv, err) : run_filter(sv, err);
	end(sv);
	free(sv);
	return rc;
}

/*
 * Shared by the files of the store's service only.
 *
 *   store_service.c  the run from start to end
 *   store_guests.c   those who are connected: their threads
 *   store_figures.c  metrics, state
 *   http.c           a page for who asks by HTTP
 */
#ifndef DS_SERVE_STORE_SERVICE_IMPL_H
#define DS_SERVE_STORE_SERVICE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "net/addr.h"
#include "serve/store_service.h"

enum door_kind { DOOR_STORE, DOOR_RESP, DOOR_HTTP };

struct door {
	enum door_kind kind;
	struct addr addr;
	int fd;
	uint64_t accepted;
	int64_t after;             /* no accept before: it failed for want of descriptors */
};

struct guest {
	struct guest *next, *prev; /* among those that are here, or (next) that have ended */
	struct store_service *sv;
	enum door_kind kind;
	int fd;
	char peer[300];
	int64_t since;
	pthread_t thread;
};

struct store_service {
	const struct store_service_options *o;
	struct store *store;
	struct store_server *server;
	struct resp_front *front;   /* NULL: none */
	struct door doors[STORE_SERVICE_DOORS + 2];
	size_t door_count;
	int64_t began;
	_Atomic bool draining;
	pthread_mutex_t lock;       /* of the guests */
	struct guest *here, *ended;
	size_t count, pages;        /* of them all; who asks by HTTP */
	int wake;                   /* an eventfd: a guest has ended */
	_Atomic uint64_t turned_away;
	struct store_session *ss;   /* for figures */
	pthread_mutex_t figures;    /* of ss */
	struct addr metrics_addr;
	const char *metrics_file;   /* NULL: none */
	int64_t metrics_at;         /* when the file was written */
};

/* store_guests.c */
void guests_accept(struct store_service *sv, struct door *d, int64_t now);
void guests_bury(struct store_service *sv);                 /* waits for the threads of those that have ended */
size_t guests_count(struct store_service *sv);
void guests_drain(struct store_service *sv);                /* each ends when its request is done */
void guests_cut(struct store_service *sv);                  /* now */

/* store_figures.c */
void figures_metrics(struct store_service *sv, struct buf *b);
void figures_state(struct store_service *sv);               /* JSON on stderr */
int figures_write(struct store_service *sv, struct ds_err *err); /* the file */

/* http.c: answers one request on a socket, whose time-outs are set.  page: writes what `path` has, returns the status:
 * 200, 404, 503. */
void http_answer(int fd, int (*page)(void *ctx, const char *path, struct buf *b), void *ctx);

#endif

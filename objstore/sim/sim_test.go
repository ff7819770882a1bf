package sim_test

import (
	"testing"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/sim"
	"github.com/tierfs/tierfs/objstore/storetest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	storetest.Run(t, "sim", func(testing.TB) objstore.Store { return sim.New(sim.Options{}) })
}

"""From a trained model to what runs elsewhere: fold, verify, export, bundles. Every result is compared with its source."""
